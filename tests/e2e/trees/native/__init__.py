"""Stories of groups that the controllers of workloads make themselves, on an API server with those gates."""
