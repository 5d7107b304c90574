"""Read-only SQL for audit questions and reports; imports `store.engine`, `store.tables`, `store.log`."""
