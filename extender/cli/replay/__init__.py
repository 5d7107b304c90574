"""`decision replay`: decisions of the log are made again by this version, another one, or with another setting."""
