"""A message queue on Redis that does not lose messages, does not double them, and does not make people wait."""
