"""The kube-scheduler side: wire format, handlers of the four verbs, proxy to the leader."""
