"""Options that several commands share, each defined once, and how their values are read."""
