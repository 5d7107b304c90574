"""Preemptions from the request to their end: disruption units, takeover, completion; imports `core.admit` and `core.capacity`."""
