"""Pure values and decisions; imports only the standard library, msgspec, immutables, numpy and ortools, and does no I/O."""
