"""Which Redis commands each role needs: those that its scripts call, and those that are sent to Redis directly."""

from __future__ import annotations

from dataclasses import dataclass

from redis_message_queue.scripts import script

SCRIPTED = ("EVAL", "EVALSHA")


@dataclass(frozen=True, slots=True)
class Role:
    """What a user of Redis does with a queue."""

    name: str
    does: str
    scripts: tuple[str, ...]
    sent: tuple[str, ...]  # besides the scripts

    @property
    def commands(self) -> tuple[str, ...]:
        """Everything that the user must be permitted to run, in the order of the alphabet."""
        called = {command for name in self.scripts for command in script(name).commands}
        return tuple(sorted(called.union(self.sent)))

    def rules(self, queue: str, separator: str = "::") -> str:
        """What ACL SETUSER wants for it, from keys to commands."""
        commands = " ".join(f"+{command.lower()}" for command in self.commands)
        return f"resetkeys ~{queue}{separator}* resetchannels -@all {commands}"


PRODUCER = Role(
    "producer",
    "publishes",
    ("publish", "enqueue"),
    (*SCRIPTED, "HSET", "HSETNX"),  # these write the version of what is stored, and that there is a journal
)
CONSUMER = Role(
    "consumer",
    "claims, renews and settles messages, and publishes what they lead to",
    ("claim", "settle", "renew", "give_back", "put_off", "hand_off", "ring"),
    (*SCRIPTED, "BLPOP", "HDEL", "HSET", "HSETNX"),  # the last ones write the weights of tenants and the version
)
OPERATOR = Role(
    "operator",
    "looks at a queue, redrives and purges",
    ("stats", "redrive", "sweep", "read_page"),
    (*SCRIPTED, "HMGET", "HSET", "HSETNX", "HSCAN", "LINDEX", "LLEN", "LRANGE", "TIME", "ZCARD", "ZRANGE", "ZSCAN"),
)
JOURNAL = Role(
    "journal",
    "reads the journal and the records, and marks what is archived",
    ("stats",),
    (
        *("EVAL", "EXEC", "HDEL", "HEXISTS", "HMGET", "HSET", "LLEN", "LRANGE", "MULTI"),
        *("XLEN", "XRANGE", "XREVRANGE"),
    ),
)
ROLES = {role.name: role for role in (PRODUCER, CONSUMER, OPERATOR, JOURNAL)}

# How many words each command has at the least, its name included; a test compares it with the servers.
_WORDS = {
    1: ("EXEC", "MULTI", "TIME"),
    2: (
        *("DECR", "EXISTS", "GET", "HLEN", "LLEN", "LPOP", "RPOP", "ZRANDMEMBER"),
        *("UNLINK", "XLEN", "ZCARD"),
    ),
    3: (
        *(
            "BLPOP",
            "DECRBY",
            "EVAL",
            "EVALSHA",
            "HDEL",
            "HEXISTS",
            "HGET",
            "HMGET",
            "HSCAN",
            "HSTRLEN",
            "INCRBY",
            "LINDEX",
        ),
        *("LPUSH", "PEXPIRE", "RPUSH", "SET", "ZMSCORE", "ZRANK", "ZREM", "ZSCAN", "ZSCORE"),
    ),
    4: (
        *("HINCRBY", "HSET", "HSETNX", "LRANGE", "LREM", "LSET", "LTRIM", "PSETEX", "XRANGE", "XREVRANGE"),
        *("XTRIM", "ZADD", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGEBYSCORE"),
    ),
    5: ("XADD",),
}
_LENGTHS = {command: length for length, commands in _WORDS.items() for command in commands}
_WITHOUT_KEY = ("EVAL", "EVALSHA", "EXEC", "MULTI", "TIME")


def example(command: str, key: str) -> tuple[str, ...]:
    """The command as short as it can be. It is for asking whether it is permitted, not for running."""
    first = () if command in _WITHOUT_KEY else (key,)
    words = (command, *first)
    return (*words, *["0"] * (_LENGTHS.get(command, 2) - len(words)))
