"""Kubernetes, and manifests read from files, behind the cluster port; imports `core` and `ports`."""
