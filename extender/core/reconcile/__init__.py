"""Comparison of cluster and log, and the events that bring the log up to date; imports `core.admit` and `core.capacity`."""
