"""Verification of the log against anchors, and of what is stored beside it against the log."""
