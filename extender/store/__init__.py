"""Postgres: the event log, the lease, snapshots and decision inputs, behind the log ports; imports `core`, `ports`, `runtime`, `snapshots` and the rows of `queries.log`."""
