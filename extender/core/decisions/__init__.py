"""Where view, state and planner meet: state in, new events or answers out; imports `core.model`, `core.log` and `core.planner`."""
