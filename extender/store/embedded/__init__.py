"""A PostgreSQL server of our own for a laptop, a demo or a single host, started and stopped with the process."""
