"""Queries of the event log: histories, decisions, preemptions, reports, streams."""
