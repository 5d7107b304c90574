"""Output for people and programs, and a client for event streams."""
