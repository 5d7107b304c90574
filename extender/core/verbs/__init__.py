"""The answers to kube-scheduler: filter, prioritize and preempt, from committed state only; imports `core.admit` and `core.capacity`."""
