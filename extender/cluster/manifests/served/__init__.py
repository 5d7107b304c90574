"""The manifests of a running service: files that change, and what was written to them."""
