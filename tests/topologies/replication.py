"""Waits for a replica to catch up with its primary."""

import redis

from tests.concurrency import LIMIT_SECONDS, until


def await_copy(replica: redis.Redis) -> None:
    """Return when the replica has its primary's data and follows it."""
    until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica has its copy")


def await_replication(primary: redis.Redis, key: str) -> None:
    """Return when a replica has everything written to the primary so far; `key` is a free key to write to."""
    # WAIT refers to the last write of its own connection, so there must be one.
    with primary.pipeline(transaction=False) as pipe:
        pipe.set(key, "a write of this connection").delete(key)
        pipe.execute_command("WAIT", 1, int(LIMIT_SECONDS * 1000))
        assert pipe.execute()[-1] >= 1
