"""The Redis commands that each role needs, for the access rules of its Redis user."""

from __future__ import annotations

from dataclasses import dataclass

from redis_message_queue.stored.scripts import script

SCRIPTED = ("EVAL", "EVALSHA")
# What writes the state of a queue or a partition that its caller is the first to use.
_OPENING = ("open_queue", "read_shared_state", "share_state", "grow_partition")


@dataclass(frozen=True, slots=True)
class Role:
    """The commands that a Redis user needs for one kind of work with a queue."""

    name: str
    does: str
    scripts: tuple[str, ...]
    sent: tuple[str, ...]  # commands outside of scripts

    @property
    def commands(self) -> tuple[str, ...]:
        """All commands that the user must be allowed to run, sorted."""
        called = {command for name in self.scripts for command in script(name).commands}
        return tuple(sorted(called.union(self.sent)))

    def rules(self, queue: str, separator: str = "::") -> str:
        """Return the rules for ACL SETUSER: keys, channels and commands."""
        commands = " ".join(f"+{command.lower()}" for command in self.commands)
        return f"resetkeys ~{queue}{separator}* resetchannels -@all {commands}"


PRODUCER = Role(
    "producer",
    "publishes",
    ("publish", "enqueue", "backfill", *_OPENING),
    SCRIPTED,
)
CONSUMER = Role(
    "consumer",
    "claims, renews and settles messages, and publishes their results",
    (
        *("claim", "take", "settle", "ack_one", "ack_and_take", "renew", "requeue", "retry_later", "hand_off"),
        *("notify", "announce_worker", "read_schedules", "tick", *_OPENING),
    ),
    (*SCRIPTED, "BLPOP"),
)
OPERATOR = Role(
    "operator",
    "reads, redrives, purges, pauses, schedules and imports into a queue, and cancels messages",
    (
        *("stats", "redrive", "sweep", "cancel", "pause", "read_page", "notify"),
        *("schedule", "unschedule", "read_schedules", "restore", "append", *_OPENING),
    ),
    (*SCRIPTED, "HMGET", "HSCAN", "LINDEX", "LLEN", "LRANGE", "MGET", "TIME", "ZCARD", "ZMSCORE", "ZRANGE", "ZSCAN"),
)
JOURNAL = Role(
    "journal",
    "reads the journal and the records, and marks archived entries",
    ("stats",),
    (
        *("EVAL", "EXEC", "HDEL", "HEXISTS", "HMGET", "HSET", "LLEN", "LRANGE", "MGET", "MULTI"),
        *("XLEN", "XRANGE", "XREVRANGE"),
    ),
)
ROLES = {role.name: role for role in (PRODUCER, CONSUMER, OPERATOR, JOURNAL)}

# The minimum number of arguments of each command, with its name; a test compares it with the servers.
_ARGUMENT_COUNTS = {
    1: ("EXEC", "MULTI", "TIME"),
    2: (
        *("DECR", "EXISTS", "GET", "HLEN", "HVALS", "LLEN", "LPOP", "MGET", "RPOP", "UNLINK", "XLEN", "ZCARD"),
        "ZRANDMEMBER",
    ),
    3: (
        *("BLPOP", "DECRBY", "EVAL", "EVALSHA", "HDEL", "HEXISTS", "HGET", "HMGET", "HSCAN", "HSTRLEN", "INCRBY"),
        *("LINDEX", "LPUSH", "PEXPIRE", "RENAME", "RPUSH", "SET", "ZMSCORE", "ZRANK", "ZREM", "ZSCAN", "ZSCORE"),
    ),
    4: (
        *("HINCRBY", "HSET", "HSETNX", "LRANGE", "LREM", "LSET", "LTRIM", "PSETEX", "XRANGE", "XREVRANGE"),
        *("XTRIM", "ZADD", "ZLEXCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREMRANGEBYRANK"),
        "ZREVRANGEBYSCORE",
    ),
    5: ("XADD",),
}
_LENGTHS = {command: length for length, commands in _ARGUMENT_COUNTS.items() for command in commands}
_WITH_TWO_KEYS = ("RENAME",)
_WITHOUT_KEY = ("EVAL", "EVALSHA", "EXEC", "MULTI", "TIME")


def example(command: str, key: str) -> tuple[str, ...]:
    """Return the shortest form of the command, to ask the server whether a user may run it."""
    start = (command,) if command in _WITHOUT_KEY else (command, key)
    if command in _WITH_TWO_KEYS:
        return (command, key, key)
    return (*start, *["0"] * (_LENGTHS.get(command, 2) - len(start)))
