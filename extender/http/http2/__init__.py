"""HTTP/2 on the listener of the verbs: its streams are connections of HTTP/1.1 to the rest of the service."""
