"""Bounded HTTP connections to one API server: requests with retries, and kept connections for small writes."""
