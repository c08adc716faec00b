"""A real server that repeats each step of a simulated one, and must reply and store the same."""

import json
from typing import Any

import redis

from simulator.keyspace import Hash, Keyspace, List, Set, SortedSet, Stream
from simulator.server import Step

SCANS = ("HSCAN", "ZSCAN")
UNEQUAL = ("TIME",)  # the real clock goes its own way
_TIME = "redis.call('TIME')"
# A script is told what the simulated clock says, behind its own arguments.
_TOLD_THE_TIME = "local told = {ARGV[#ARGV - 1], ARGV[#ARGV]} ARGV[#ARGV] = nil ARGV[#ARGV] = nil "
# How a value is read: the command, and what follows the key.
_READ: dict[type, tuple[str, ...]] = {
    List: ("LRANGE", "0", "-1"),
    Hash: ("HGETALL",),
    Set: ("SMEMBERS",),
    SortedSet: ("ZRANGE", "0", "-1", "WITHSCORES"),
    Stream: ("XRANGE", "-", "+"),
    bytes: ("GET",),
    type(None): ("EXISTS",),
}


class RealServer:
    """Executes the steps at the times that the simulated server had."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._expires_us: dict[bytes, int] = {}
        self._is_full = False
        self.steps = 0

    def repeat(self, step: Step, keyspace: Keyspace) -> None:
        """Execute a step, and compare its reply and the keys that it changed."""
        self.steps += 1
        self._fill_memory(step.was_full)
        values: dict[bytes, Any] = {key: keyspace.values.get(key) for key in step.changed}
        reply, *found = self._execute(step, values)
        self._expires_us = dict(keyspace.expires_us)
        error = reply if isinstance(reply, Exception) else None
        assert (error is None) == (step.error is None), f"{step.name}: {error!r} here, {step.error!r} in the simulator"
        if step.error is not None:
            assert _code(step.error) in str(error)
        elif step.name not in UNEQUAL:
            assert _same(step.name, reply) == _same(step.name, step.reply), f"{step.name} replied otherwise"
        for (key, value), one in zip(values.items(), found, strict=True):
            assert _real(key, value, one) == _simulated(key, value), f"{step.name} left another {key!r}"

    def _fill_memory(self, is_full: bool) -> None:
        if is_full != self._is_full:
            self._client.config_set("maxmemory", 1 if is_full else 0)
            self._is_full = is_full

    def _execute(self, step: Step, values: dict[bytes, Any]) -> list[Any]:
        """In one transaction with the end of all expiry times: what expires is decided by virtual time."""
        pipe: Any = self._client.pipeline(transaction=True)
        pipe.response_callbacks = {}  # raw replies, and not for the client as well
        gone = [key for key, at in self._expires_us.items() if at <= step.now_us]
        if gone:
            pipe.execute_command("DEL", *gone)
        if step.name == "BLPOP":
            pipe.execute_command("LPOP", step.keys[0])
        elif step.script is not None:
            source = _TOLD_THE_TIME + step.script.source.replace(_TIME, "told")
            now = divmod(step.now_us, 1_000_000)
            pipe.execute_command("EVAL", source, len(step.keys), *step.keys, *step.arguments, *now)
        else:
            pipe.execute_command(step.name, *step.arguments)
        for key in values:
            pipe.execute_command("PERSIST", key)
        for key, value in values.items():
            command, *options = _READ[type(value)]
            pipe.execute_command(command, key, *options)
        replies = pipe.execute(raise_on_error=False)[bool(gone) :]
        return [replies[0], *replies[1 + len(values) :]]


def _real(key: bytes, value: Any, found: Any) -> Any:
    """What the real server has in a key, whose value in the simulated one is of the same kind."""
    if isinstance(found, Exception):
        raise AssertionError(f"{key!r} is of another kind") from found
    if value is None:
        return None if found == 0 else found
    if isinstance(value, List):
        return _elements(key, found)
    if isinstance(value, Hash):
        return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    if isinstance(value, Set):
        return set(found)
    if isinstance(value, SortedSet):
        pairs = found if found and isinstance(found[0], list) else zip(found[::2], found[1::2], strict=True)
        return {member: float(score) for member, score in pairs}
    if isinstance(value, Stream):
        return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in found]
    return _string(key, found)


def _simulated(key: bytes, value: Any) -> Any:
    if isinstance(value, List):
        return _elements(key, list(value))
    if isinstance(value, Hash):
        return dict(value)
    if isinstance(value, Set):
        return set(value)
    if isinstance(value, SortedSet):
        return dict(value.scores)
    if isinstance(value, Stream):
        return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in value.entries]
    return _string(key, value)


def _elements(key: bytes, elements: list[bytes]) -> list[Any]:
    """Records are JSON objects, whose fields have no order."""
    return [json.loads(one) for one in elements] if b"::records::" in key else elements


def _string(key: bytes, value: Any) -> Any:
    """Of a stored reply the number: the rest may be MessagePack, where the fields of a map have no order."""
    return value[:12] if value is not None and b"::reply::" in key else value


def _same(name: str, reply: Any) -> Any:
    """A reply in the form in which both can be compared."""
    if isinstance(reply, str):
        reply = reply.encode()
    if name in SCANS:
        return _plain(reply[0]), sorted(map(repr, _plain(reply[1])))
    return _plain(reply)


def _plain(reply: Any) -> Any:
    if isinstance(reply, list | tuple):
        return [_plain(one) for one in reply]
    if isinstance(reply, dict):
        return [_plain(part) for pair in reply.items() for part in pair]
    if isinstance(reply, bytes):
        try:
            return float(reply)  # servers write the fraction of a score with more digits or with fewer
        except ValueError:
            return reply
    return int(reply) if isinstance(reply, bool) else reply


def _code(error: str) -> str:
    """The word that tells what is wrong."""
    words = error.removeprefix("ERR ").split()
    return "maxmemory" if words[0] == "OOM" else words[0]
