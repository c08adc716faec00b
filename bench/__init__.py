"""What a message costs: this library, raw redis-py and the peer package, interleaved in one run."""
