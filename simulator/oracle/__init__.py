"""The oracle: what must be true after every step, and the account by which it judges."""
