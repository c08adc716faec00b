"""The blocking shell."""
