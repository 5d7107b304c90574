"""Answers about the state at a moment, past or present; imports `queries.log`."""
