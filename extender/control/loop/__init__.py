"""The control loop: observe, reconcile, plan, append, actuate; imports `control.admission`, `control.actuators`, `control.published`."""
