"""The same trace on the same cluster through this planner and through algorithms after the descriptions of peers."""
