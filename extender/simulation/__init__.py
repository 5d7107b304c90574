"""A cluster in virtual time, and what arrives in it; imports everything below `cli`."""
