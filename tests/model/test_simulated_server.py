"""The simulated server does what a real one does: each step of random schedules has the same reply and effect."""

import json
from typing import Any

import pytest
import redis

from simulator.keyspace import Hash, Keyspace, List, Set, SortedSet, Stream
from simulator.plan import Plan, plan_of
from simulator.server import Step
from simulator.world import World
from tests.depth import often

SCANS = ("HSCAN", "ZSCAN")
UNEQUAL = ("TIME",)  # the real clock goes its own way


class RealServer:
    """Executes the steps of a schedule on a real server, at the times that the simulated one had."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._expires_us: dict[bytes, int] = {}
        self.steps = 0
        self.scripts: set[str] = set()

    def repeat(self, step: Step, keyspace: Keyspace) -> None:
        """Execute a step, and compare its reply and the keys that it changed."""
        self.steps += 1
        self._let_keys_expire(step.now_us)
        self._client.config_set("maxmemory", 1 if step.was_full else 0)
        reply, error = self._execute(step)
        assert (error is None) == (step.error is None), f"{step.name}: {error!r} here, {step.error!r} in the simulator"
        if step.error is not None:
            assert _code(step.error) in str(error)
        elif step.name not in UNEQUAL:
            assert _same(step.name, reply) == _same(step.name, step.reply), f"{step.name} replied otherwise"
        self._expires_us = dict(keyspace.expires_us)
        for key in step.changed:
            assert self._read(key) == _simulated(key, keyspace), f"{step.name} left another {key!r}"

    def _let_keys_expire(self, now_us: int) -> None:
        gone = [key for key, at in self._expires_us.items() if at <= now_us]
        if gone:
            self._client.delete(*gone)

    def _execute(self, step: Step) -> tuple[Any, Exception | None]:
        """In one transaction with the end of all expiry times: what expires is decided by virtual time."""
        pipe = self._client.pipeline(transaction=True)
        if step.name == "BLPOP":
            pipe.lpop(step.keys[0])
        elif step.script is not None:
            self.scripts.add(step.name)
            seconds, microseconds = divmod(step.now_us, 1_000_000)
            source = step.script.source.replace("redis.call('TIME')", f"{{'{seconds}', '{microseconds}'}}")
            pipe.execute_command("EVAL", source, len(step.keys), *step.keys, *step.arguments)
        else:
            pipe.execute_command(step.name, *step.arguments)
        pipe.response_callbacks = {}  # type: ignore[assignment]  # raw replies, and not for the client as well
        for key in step.changed:
            pipe.execute_command("PERSIST", key)
        reply = pipe.execute(raise_on_error=False)[0]
        return (None, reply) if isinstance(reply, Exception) else (reply, None)

    def _read(self, key: bytes) -> Any:
        client: Any = self._client
        kind = client.type(key)
        if kind == b"list":
            return _elements(key, client.lrange(key, 0, -1))
        if kind == b"hash":
            return client.hgetall(key)
        if kind == b"set":
            return client.smembers(key)
        if kind == b"zset":
            return dict(client.zrange(key, 0, -1, withscores=True))
        if kind == b"stream":
            return [fields for _, fields in client.xrange(key)]
        return _string(key, client.get(key))


def _simulated(key: bytes, keyspace: Keyspace) -> Any:
    value = keyspace.values.get(key)
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


def _without_lost_writes(plan: Plan) -> Plan:
    """A real server cannot be set back to an earlier state in the middle of a schedule."""
    return plan.only(faults={one.number for one in plan.faults if not one.lost_seconds})


# In schedule 13, messages that failed keep their places.
@pytest.mark.parametrize("seed", range(often(14, 200)))
def test_every_step_of_a_schedule_is_the_same_on_a_real_server(client: redis.Redis, seed: int):
    """Replies, errors and keys agree, with lost and repeated requests, on a full server, for all scripts."""
    real = RealServer(client)

    def observe(step: Step) -> None:
        real.repeat(step, world.server.keyspace)

    world = World(_without_lost_writes(plan_of(seed)), observe)
    try:
        outcome = world.run()
    finally:
        client.config_set("maxmemory", 0)
    for error in world.loop.world.errors:
        raise error
    assert outcome.violation is None
    assert real.steps >= outcome.steps > 0
