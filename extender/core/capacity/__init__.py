"""Free capacity of nodes, capacity claims and replacement holds; imports no other folder of decisions."""
