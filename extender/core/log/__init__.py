"""The events of the log and the reservation state that they add up to; imports `core.model`."""
