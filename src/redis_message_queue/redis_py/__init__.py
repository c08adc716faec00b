"""What both shells know of redis-py."""
