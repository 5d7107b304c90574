"""What long-running code needs of the machine: clock, wake-ups, periodic tasks, cooperative yields, worker processes; imports `ports` and `telemetry`."""
