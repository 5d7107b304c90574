"""The cluster port on files: YAML in, a journal of what was done out; imports `cluster.read`."""
