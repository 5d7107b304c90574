"""Find the cheapest set of disruption units whose eviction makes room; imports `planner.solve` and `planner.model`."""
