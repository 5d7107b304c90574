"""Turns workloads into trees of groups: records what they become, then writes the groups; imports `control.actuators` and `control.log`."""
