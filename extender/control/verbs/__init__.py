"""One method per verb of kube-scheduler: decide from committed state, answer."""
