"""Saved folds of the log: encode, load, write, fill gaps; imports `ports` and `core`."""
