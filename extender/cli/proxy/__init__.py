"""A port of this machine that leads to the service with the token of the user."""
