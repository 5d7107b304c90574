"""Convert objects of the API to values of the core, change by change; imports `cluster.types`."""
