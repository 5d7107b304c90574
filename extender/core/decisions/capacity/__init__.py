"""What is free on nodes, and what reservations, preemptions and replacements hold of it; imports no other folder of decisions."""
