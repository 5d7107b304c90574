"""Read-only SQL for audit questions and reports; imports `store.connections`, `store.tables`, `store.log`."""
