"""`rmq worker`: processes that give messages to a function, and the one that looks after them."""
