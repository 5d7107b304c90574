"""Preemptions from the request to their end: disruption units, takeover, completion; imports `decisions.admit`."""
