"""What workloads in files are for a service: objects of an API server, with the pods that controllers make of them."""
