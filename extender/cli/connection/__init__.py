"""Find the service, by its URL or in a cluster by a forwarded port, and ask it."""
