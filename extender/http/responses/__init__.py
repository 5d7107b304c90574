"""Bodies of requests and responses: JSON in pieces, and the mapping of errors to HTTP."""
