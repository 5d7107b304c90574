"""The leader that appends (role, lease loop, append pipeline, settlement) and the follower that reads; imports `snapshots`."""
