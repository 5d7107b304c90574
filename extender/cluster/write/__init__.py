"""Writes to the API server: bindings, evictions, status, finalizers, Events; imports `cluster.connection`."""
