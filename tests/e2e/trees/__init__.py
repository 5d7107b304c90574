"""Workloads of other projects' real controllers, and the trees that our service makes of them."""
