"""Values that pass between the rooms: errors, events, messages and outcomes."""
