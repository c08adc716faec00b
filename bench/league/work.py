"""`python -m bench.league.work MEMBER`: the worker of a member that has no command of its own."""

import sys
import threading
from importlib import import_module

from bench.league.settings import CONCURRENCY

if __name__ == "__main__":
    adapter = import_module(f"bench.league.adapters.{sys.argv[1]}")
    # Who has no way to run several handlers gets a thread for each.
    for _ in range(CONCURRENCY - 1 if getattr(adapter, "NEEDS_THREADS", False) else 0):
        threading.Thread(target=adapter.work, daemon=True).start()
    adapter.work()
