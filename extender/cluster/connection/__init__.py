"""One bounded HTTP connection to an API server, and what that server serves."""
