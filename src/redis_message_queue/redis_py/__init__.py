"""The only room that knows redis-py, for both shells."""
