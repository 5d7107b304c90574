"""The events of the log and the reservation state that is folded from them; imports `core.model` and `core.workloads`."""
