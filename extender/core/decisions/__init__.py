"""Pure decisions: functions from view and state to new events or answers; imports `core.model`, `core.log` and `core.planner`."""
