"""The chaos campaign: real processes and servers, faults by plan, and a checker that proves what survived."""
