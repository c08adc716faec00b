"""A replica that keeps up with its primary."""

import redis

from tests.topologies.waiting import PATIENCE_SECONDS, wait_until


def await_copy(replica: redis.Redis) -> None:
    """Return when the replica has its primary's data and follows it."""
    wait_until(lambda: replica.info("replication").get("master_link_status") == "up", "the replica has its copy")


def await_replication(primary: redis.Redis, key: str) -> None:
    """Return when a replica has all that was written to the primary so far; `key` is a free one to write to."""
    # WAIT looks at the last write of its own connection, so there must be one.
    with primary.pipeline(transaction=False) as pipe:
        pipe.set(key, "a write of this connection").delete(key)
        pipe.execute_command("WAIT", 1, int(PATIENCE_SECONDS * 1000))
        assert pipe.execute()[-1] >= 1
