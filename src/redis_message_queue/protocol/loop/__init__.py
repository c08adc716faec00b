"""How `run` claims ahead of its handlers."""
