"""Whole stories: our service between a real kube-scheduler and a real kube-apiserver."""
