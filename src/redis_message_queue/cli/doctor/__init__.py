"""rmq doctor: whether a server is fit for queues, and what to change."""
