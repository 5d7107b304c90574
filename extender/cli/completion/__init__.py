"""Completion in shells: names of live objects, and the program that kubectl runs to complete `kubectl gang`."""
