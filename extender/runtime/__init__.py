"""What long-running code needs of the machine: clock, wake-ups, cooperative yields, worker processes; imports `ports`."""
