"""Would it fit: the planner on files, or on the cluster as it is now."""
