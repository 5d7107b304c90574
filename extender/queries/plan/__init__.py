"""Plan queries: whether trees fit on a cluster from files, or on the live cluster."""
