"""`gang-extender verify` and `gang-extender keys`: the log against its anchors, and the keys that sign them."""
