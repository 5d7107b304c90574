"""Why an object is in the state that it is in, and what would help; imports `queries.plan` and `queries.state`."""
