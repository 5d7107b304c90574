"""What long-running code needs of the machine: clock, wake-ups, periodic tasks, cooperative yields, worker processes, keys; imports `core`, `ports` and `telemetry`."""
