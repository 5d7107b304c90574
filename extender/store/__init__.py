"""Postgres: the event log, the lease, checkpoints and decision inputs, behind the ports of the service."""
