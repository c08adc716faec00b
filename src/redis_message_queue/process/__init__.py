"""What belongs to one process: its identity, its clock, its forks and its stop signals."""
