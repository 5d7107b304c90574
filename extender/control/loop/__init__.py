"""The control loop: observe, reconcile, plan, append, actuate; imports `control.binding`, `control.actuators`, `control.published`, `control.log`."""
