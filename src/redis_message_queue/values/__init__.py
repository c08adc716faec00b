"""What passes between the rooms: errors, events, messages and outcomes."""
