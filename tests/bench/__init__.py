"""Benchmarks: every number of this project beside the baseline measured in the same run."""
