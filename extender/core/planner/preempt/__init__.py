"""Find the cheapest set of disruption units whose eviction frees capacity; imports `planner.explain`, `planner.solve` and `planner.model`."""
