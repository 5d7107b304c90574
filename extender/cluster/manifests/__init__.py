"""The cluster port on files: YAML in, a journal of what was done out (`served`); imports `cluster.read`, `cluster.write` and `queries.plan`."""
