"""Writes to the cluster that follow from committed events: nominations, gates, evictions, finalizers, status; imports `control.log`, `control.published`."""
