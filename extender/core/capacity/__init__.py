"""Free capacity of nodes, capacity claims and replacement holds; imports `core.log` and `core.planner`."""
