"""One module for each member of the league: how it publishes, and what its worker runs.

They are imported by the interpreter of that member's environment, so they use nothing but its packages, and only its
documented API.
"""
