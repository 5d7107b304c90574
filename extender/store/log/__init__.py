"""The event log on PostgreSQL: append, read, encode, index; imports `store.connections` and `store.tables`."""
