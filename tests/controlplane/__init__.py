"""A real Kubernetes control plane for tests: pinned, built from Go modules, run on loopback."""
