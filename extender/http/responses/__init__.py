"""Writing answers: JSON in pieces, and the one mapping of errors to HTTP."""
