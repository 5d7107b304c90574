"""Kubernetes, and manifests read from files, behind the cluster port; imports `core`, `ports`, `runtime` and, for plans from files, `queries.plan`."""
