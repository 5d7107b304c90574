"""The bind barrier: Bindings wait until the minimum of a gang has arrived; imports `control.log`."""
