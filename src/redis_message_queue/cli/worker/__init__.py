"""`rmq worker`: processes that call a function with each message, and their supervisor."""
