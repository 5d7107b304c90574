"""The leader that appends (role, lease loop, append pipeline, appends in doubt) and the follower that reads; imports `snapshots`."""
