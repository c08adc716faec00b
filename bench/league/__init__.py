"""The league: this library beside other queues on Redis, each in its own environment with its ordinary worker."""
