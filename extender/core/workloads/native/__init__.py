"""Workloads with a scheduling block of their own: which of the groups that their controllers make are adopted, and below what."""
