"""Printing for people and programs, and reading streams of events."""
