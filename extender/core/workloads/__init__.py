"""Workload objects of other controllers, and the trees of groups that they become. Pure; may import only `core.model`."""
