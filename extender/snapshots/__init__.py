"""Saved folds of the log: encode, load, write, fill gaps; imports `ports` and `core`. A database that does not answer raises `StoreUnavailable`; docstrings name other errors."""
