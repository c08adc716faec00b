"""`python -m bench.league.work MEMBER`: the worker of a member that has no command of its own."""

import sys
from importlib import import_module

if __name__ == "__main__":
    import_module(f"bench.league.adapters.{sys.argv[1]}").work()
