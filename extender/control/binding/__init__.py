"""The bind barrier: Bindings are held until the minimum of a gang has arrived; imports `control.actuators` and `control.log`."""
