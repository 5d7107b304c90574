"""The cluster port on a real API server: informers, and the adapter made of reads and writes."""
