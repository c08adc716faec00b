"""What the harness tells the processes of a member of the league, by environment variables."""

import os

URL = os.environ.get("LEAGUE_URL", "redis://127.0.0.1:6379/0")
# Each handler appends a line to this file.
LOG = os.environ.get("LEAGUE_LOG", os.devnull)
# How long a handler takes.
PAUSE_SECONDS = float(os.environ.get("LEAGUE_PAUSE", "0"))
# In the loss test, whatever recovers the messages of a dead worker does so after this time, if it can be set.
LEASE_SECONDS = int(os.environ.get("LEAGUE_LEASE", "0"))
# How many messages a worker takes at once, where it can.
BATCH = int(os.environ.get("LEAGUE_BATCH", "1"))
# How many handlers run at the same time; 0 leaves that to the member.
CONCURRENCY = int(os.environ.get("LEAGUE_CONCURRENCY", "0"))
QUEUE = "league"
