"""Answers from the event log: histories, decisions, preemptions, reports, streams."""
