"""The kube-scheduler side: wire format, handlers of the four verbs, forwarding to the leader."""
