"""How messages are claimed, leased and settled."""
