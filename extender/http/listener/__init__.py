"""What is between a socket and a request: TLS that follows its files, HTTP/2, limits of connections, and calls answered without a request object."""
