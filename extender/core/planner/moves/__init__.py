"""Moves of running pods that make room: the fewest, in an order in which each has its place before it leaves."""
