"""The command line: `rmq`, and `python -m redis_message_queue`."""
