"""Which groups workloads become: requests for the compiler, events from its results, and the writes that follow from them."""
