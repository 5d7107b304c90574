"""Responses: JSON in pieces, and the mapping of errors to HTTP."""
