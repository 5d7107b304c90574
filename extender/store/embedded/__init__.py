"""An embedded PostgreSQL server for a laptop, a demo or a single host, started and stopped with the process."""
