"""Compare cluster and log, and give the events that bring the log to what the cluster shows; imports `decisions.admit`."""
