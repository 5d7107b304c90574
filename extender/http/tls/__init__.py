"""TLS: contexts that follow the files of certificates, and who a caller is by its client certificate."""
