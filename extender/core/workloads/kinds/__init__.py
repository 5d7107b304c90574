"""The table entries: one module per kind of workload, with everything that is known about it. May import `core.workloads`."""
