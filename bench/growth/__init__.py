"""How the cost of a message grows with what the queue holds: more messages, tenants, consumers or bytes."""
