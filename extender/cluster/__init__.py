"""Kubernetes, and manifests read from files, behind the cluster port of the service."""
