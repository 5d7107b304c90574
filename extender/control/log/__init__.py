"""The lease, the leader that appends, the follower that reads; imports `snapshots`."""
