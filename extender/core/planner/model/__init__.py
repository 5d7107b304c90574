"""A plan request compiled for searching: node tables, feasibility, constraints, bounds; imports `core.model` and `planner.plan_types`."""
