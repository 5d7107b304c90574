"""Edge cases of workloads with their real controllers, on 1.37."""
