"""Which fields the API of each workload kind has, and which of them a plan uses."""
