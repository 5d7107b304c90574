"""The admission policies, roles and profiles of workload trees on a real API server, without the service."""
