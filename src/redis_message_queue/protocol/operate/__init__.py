"""What operators read and change in a live queue."""
