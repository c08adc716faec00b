"""Every option of queues and gateways, declared and checked once."""
