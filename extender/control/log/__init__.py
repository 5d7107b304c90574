"""The lease, the leader that appends, and the follower that reads; imports `snapshots`."""
