"""Which waiting trees capacity is held for, in which turn, and when a hold ends."""
