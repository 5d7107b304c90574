"""Plan requests as canonical bytes, cut into chunks that decisions share; imports the types of the planner."""
