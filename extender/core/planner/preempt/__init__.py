"""Find the cheapest set of disruption units whose eviction frees capacity; imports `planner.solve` and `planner.model`."""
