"""How a queue works through a custom gateway."""
