"""The state of one process: its identity, its clock, its forks and its stop signals."""
