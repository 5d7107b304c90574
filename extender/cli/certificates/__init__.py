"""`gang-extender certs`: a CA, the certificate of the server and those of its clients."""
