"""Periodic work of the leader beside the control loop; imports `control.log`."""
