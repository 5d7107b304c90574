"""From objects of the API to values of the core, kept up to date change by change; imports `cluster.types`."""
