"""What type checkers know of the library."""
