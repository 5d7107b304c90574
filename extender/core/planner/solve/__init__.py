"""Find a placement: greedy first, then CP-SAT; imports `planner.model`."""
