"""The plan request of a pending tree, and the events that follow from the plan; imports `core.capacity` and `core.fairness`."""
