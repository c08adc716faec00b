"""How messages get into a queue."""
