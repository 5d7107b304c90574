"""The cluster port on a real API server: informers, discovery, access reviews, and the adapter made of reads and writes."""
