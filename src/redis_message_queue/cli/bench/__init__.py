"""rmq bench: what a message costs on this machine, beside raw Redis."""
