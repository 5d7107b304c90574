"""Read-only answers for HTTP and the command line; never imports `control`."""
