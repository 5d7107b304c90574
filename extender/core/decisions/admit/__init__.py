"""What a pending tree needs before it is planned, and the events that follow from the plan; imports `decisions.capacity`."""
