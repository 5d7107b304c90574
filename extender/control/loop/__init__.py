"""The control loop: observe, reconcile, plan, record, actuate; imports `control.binding`, `control.actuators`, `control.log`."""
