"""What the control loop publishes for the verbs, and what the verbs report to it; imports nothing of `control`."""
