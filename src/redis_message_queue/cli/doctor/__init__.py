"""`rmq doctor`: checks a server and its queues, and says what to change."""
