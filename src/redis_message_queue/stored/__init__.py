"""How a queue looks in Redis: its keys, its messages and its scripts."""
