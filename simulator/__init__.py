"""A simulator that runs the queue's own code and scripts through seeded schedules of faults, in virtual time."""
