"""The event log on PostgreSQL: append, read, encode, index; imports `store.engine` and `store.tables`."""
