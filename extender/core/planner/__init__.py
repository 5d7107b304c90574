"""Place a tree of groups on a cluster: pure, deterministic, budgeted in search nodes."""
