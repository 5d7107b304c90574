"""Everything that changes something: the log's writer, the control loop, actuators, the verbs; imports `core`, `ports`, `runtime`, `snapshots`."""
