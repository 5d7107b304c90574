"""The command line: parse, call a service, print. What a user gave and cannot be used raises `BadInput`, with option and value; docstrings name other errors."""
