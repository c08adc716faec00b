"""A queue with something in every one of its keys, and another program that damages one of them."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis_message_queue import RedisMessageQueue, RetryPolicy
from redis_message_queue.spark.consumer_group import GroupPart
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.stored.keys import REGISTRY_KEY, QueueKeys
from tests.fuzz import snapshot

NAME, GROUP = "jobs", "night"
KEYS = QueueKeys.of(NAME)
TENANTS = ("acme", "zeta")
POLICY = RetryPolicy(initial_delay_seconds=1_000, max_delay_seconds=1_000)
ALARMS = (b"d", b"r")
ID_BYTES, TOKEN_BYTES = 16, 36


def queue_on(client: Any, **options: Any) -> RedisMessageQueue:
    """A queue that waits for nothing and uses everything."""
    usual: dict[str, Any] = {
        "message_wait_interval_seconds": 0,
        "enable_completed_queue": True,
        "enable_failed_queue": True,
        "journal": "payload",
        "tenant_weights": {"acme": 2},
        "max_in_flight_per_tenant": 100,
        "deduplication": True,
        "get_deduplication_key": str,
        "retry_budget_seconds": 0,
        "consumer_name": "billing",
    }
    return RedisMessageQueue(NAME, client=client, **usual | options)


def group_on(client: Any, url: str) -> GroupPart:
    return GroupPart(client, SourceOptions(url=url, queue=NAME, consumer_group=GROUP))


@dataclass
class World:
    """A snapshot of the queue, and which message is in which bytes."""

    state: snapshot.Snapshot = field(repr=False)
    payloads: dict[bytes, str] = field(default_factory=dict)  # by id
    of_group: frozenset[str] = frozenset({"batch-1", "batch-2"})  # that a streaming query holds

    def of(self, *elements: bytes) -> set[str]:
        """Return the messages that these bytes belong to."""
        return {
            payload for id, payload in self.payloads.items() for one in elements if id in one or payload.encode() in one
        }


def build(client: Any, url: str) -> World:
    """Put messages into every state."""
    client.flushall()
    queue = queue_on(client)
    failing = queue_on(client, retry_policy=POLICY, enable_failed_queue=False)
    limited = queue_on(client, max_delivery_count=1)

    def die(one: RedisMessageQueue) -> None:
        with suppress(KeyboardInterrupt), one.process_message() as message:
            assert message is not None
            raise KeyboardInterrupt

    def fail(message: Any) -> None:
        raise ValueError("no such customer")

    for text, consumer in (("completed-1", str), ("failed-1", fail)):
        queue.publish(text)
        with suppress(ValueError):
            queue.process_message_callback(consumer)
    queue.publish("dead-1")
    die(limited)
    expire(client)
    limited.process_message_callback(str)
    queue.publish("retried-1", tenant="acme")
    with suppress(ValueError):
        failing.process_message_callback(fail)
    queue.publish_many(["batch-1", "batch-2"])
    group = group_on(client, url)
    group.acquire_group()
    group.fill_batch(2)
    group.seal_batch()
    group.release_lease()
    for text in ("flying-1", "flying-2"):
        queue.publish(text)
        die(queue)
    queue.publish("returned-1", tenant="acme")
    die(queue)
    expire(client)
    for text in ("waiting-1", "waiting-2", "waiting-3"):
        queue.publish(text)
        for tenant in TENANTS:
            queue.publish(f"{tenant}-{text}", tenant=tenant)
    queue.schedule("nightly", every_seconds=10_000_000, message="scheduled", headers={"a": "b"}, tenant="acme")
    queue.cancel("ab" * 16)  # a mark of nobody
    # The first claim after a lease expired moves it to its tenant; the one that it takes goes back untouched.
    queue.publish("delayed-1", delay_seconds=1_000)
    queue.publish("delayed-2", tenant="zeta", delay_seconds=1_000)
    die(queue)
    client.set(KEYS.longest, "acme")
    client.set(KEYS.timer_owner, "1")
    client.zadd(KEYS.connected_workers, {'1 0 {"process":"00","name":null,"host":"h","pid":1,"concurrency":1}': 1e16})
    client.lpush(KEYS.wakeup, "1")
    client.hset(KEYS.backfill("once"), "file", "1:1")
    world = World(snapshot.take(client))
    for stored in map(Envelope, everything_stored(client)):
        world.payloads[stored.id] = stored.payload.decode()
    return world


def everything_stored(client: Any) -> list[bytes]:
    """Every message in every list and hash of stored messages."""
    found: list[bytes] = []
    for key in (KEYS.pending, *(KEYS.tenant_pending(one) for one in TENANTS), KEYS.members(GROUP, 1)):
        found += client.lrange(key, 0, -1)
    for key in (KEYS.processing, KEYS.delayed_messages):
        found += client.hvals(key)
    return found


def expire(client: Any) -> None:
    """End every lease and every delay; the order stays as it was."""
    for key in (KEYS.leases, KEYS.delayed):
        if client.type(key) != b"zset":
            continue
        for place, member in enumerate(client.zrange(key, 0, -1)):
            if key == KEYS.delayed or len(member) == TOKEN_BYTES:
                client.zadd(key, {member: 1_000 + place})
    if client.type(KEYS.leases) in (b"zset", b"none") and client.exists(KEYS.delayed):
        client.zadd(KEYS.leases, {b"d": 1_000})
    if client.type(KEYS.leases) == b"zset" and client.type(KEYS.schedules) == b"zset":
        client.zadd(KEYS.schedules, dict.fromkeys(client.zrange(KEYS.schedules, 0, -1), 1_000))
        client.zadd(KEYS.leases, {b"s": 1_000})


# -- what another program may do


@dataclass
class Damage:
    """What was done to which key, and the bytes that were there before."""

    key: bytes
    what: str
    before: tuple[bytes, ...] = ()
    after: tuple[bytes, ...] = ()

    @property
    def is_version(self) -> bool:
        """Whether the state may now have another version, so that everything is refused."""
        return self.key == KEYS.meta.encode()


NUMBERS = [
    b"nan",
    b"inf",
    b"-inf",
    b"-1",
    b"0",
    b"1e400",
    b"9" * 12,
    b"9" * 19,
    b"9" * 40,
    b"0x10",
    b"1.5",
    b" 1",
    b"1\n",
]
WORDS = [
    b"",
    b"\x80",
    b"\x87",
    b"hello",
    b"\xff" * 36,
    b"{}",
    b"[1]",
    b"null",
    b'{"id": 5}',
    b"\x00",
    b"\x1b[31m\xc2\x9b2J",
]
SCORES = [float("inf"), float("-inf"), 0.0, -1.0, 1e300, -1e300, 1.5, 2.0**53, 5e-324]


def junk(rnd: random.Random) -> bytes:
    """Bytes that are not ours."""
    choice = rnd.randrange(4)
    if choice == 0:
        return rnd.choice(NUMBERS)
    if choice == 1:
        return rnd.choice(WORDS)
    if choice == 2:  # as long as one of ours, and beginning like it
        return bytes([0x80 | rnd.randrange(16)]) + bytes(
            rnd.randrange(256) for _ in range(rnd.choice([15, 24, 35, 60]))
        )
    return bytes(rnd.randrange(256) for _ in range(rnd.choice([1, 12, 16, 25, 36, 70])))


def altered(rnd: random.Random, value: bytes) -> bytes:
    """The same bytes with a bit flipped, cut off, or replaced."""
    choice = rnd.randrange(4)
    if choice == 0 and value:
        at = rnd.randrange(len(value))
        return value[:at] + bytes([value[at] ^ (1 << rnd.randrange(8))]) + value[at + 1 :]
    if choice == 1 and value:
        return value[: rnd.randrange(len(value))]
    return value + junk(rnd) if choice == 2 else junk(rnd)


def do_damage(client: Any, rnd: random.Random, *, wrong_type: bool) -> Damage:
    """Damage one key of the queue: its bytes, or its type."""
    kinds: dict[bytes, list[bytes]] = {}
    spared = {REGISTRY_KEY.encode()} if wrong_type else set()  # no call of a queue fails because of it
    for one in sorted({*client.keys("*")} - spared):
        kinds.setdefault(one.split(b"::")[1], []).append(one)
    key = rnd.choice(kinds[rnd.choice(sorted(kinds))])
    kind = client.type(key)
    if wrong_type:
        return _change_type(client, rnd, key, kind)
    return {
        b"string": _damage_string,
        b"list": _damage_list,
        b"hash": _damage_hash,
        b"zset": _damage_set,
        b"stream": _damage_stream,
        b"set": _damage_registry,
    }[kind](client, rnd, key)


def _damage_registry(client: Any, rnd: random.Random, key: bytes) -> Damage:
    (member,) = client.smembers(key)
    after = altered(rnd, member)
    client.srem(key, member)
    client.sadd(key, after)
    return Damage(key, "member", (member,), (after,))


def _change_type(client: Any, rnd: random.Random, key: bytes, kind: bytes) -> Damage:
    dump: Any = client.dump(key)
    before = (dump,)
    client.delete(key)
    other = rnd.choice([one for one in (b"string", b"list", b"hash", b"zset", b"stream", b"set") if one != kind])
    write: dict[bytes, Any] = {
        b"string": lambda: client.set(key, junk(rnd)),
        b"list": lambda: client.lpush(key, junk(rnd)),
        b"hash": lambda: client.hset(key, junk(rnd), junk(rnd)),
        b"zset": lambda: client.zadd(key, {junk(rnd): 1}),
        b"set": lambda: client.sadd(key, junk(rnd)),
        b"stream": lambda: client.xadd(key, {"a": "b"}),
    }
    write[other]()
    return Damage(key, "another type", before, (other,))


def _damage_string(client: Any, rnd: random.Random, key: bytes) -> Damage:
    before: Any = client.get(key)
    after = altered(rnd, before)
    client.set(key, after)
    return Damage(key, "value", (before,), (after,))


def _damage_list(client: Any, rnd: random.Random, key: bytes) -> Damage:
    if rnd.randrange(2):
        after = junk(rnd)
        client.execute_command(rnd.choice(["LPUSH", "RPUSH"]), key, after)
        return Damage(key, "pushed", (), (after,))
    place = rnd.randrange(client.llen(key))
    before: Any = client.lindex(key, place)
    after = altered(rnd, before)
    client.lset(key, place, after)
    return Damage(key, "element", (before,), (after,))


def _damage_hash(client: Any, rnd: random.Random, key: bytes) -> Damage:
    if rnd.randrange(4) == 0:
        name, after = junk(rnd), junk(rnd)
        client.hset(key, name, after)
        return Damage(key, "new field", (), (name, after))
    name = rnd.choice(sorted(client.hkeys(key)))
    before: Any = client.hget(key, name)
    if rnd.randrange(4) == 0:
        renamed = altered(rnd, name)
        client.hdel(key, name)
        client.hset(key, renamed, before)
        return Damage(key, "field", (name, before), (renamed,))
    after = altered(rnd, before)
    client.hset(key, name, after)
    return Damage(key, "value of a field", (name, before), (after,))


def _damage_set(client: Any, rnd: random.Random, key: bytes) -> Damage:
    choice, score = rnd.randrange(3), rnd.choice(SCORES)
    if choice == 0:
        after = junk(rnd)
        client.zadd(key, {after: score})
        return Damage(key, f"new member at {score}", (), (after,))
    member = rnd.choice(sorted(client.zrange(key, 0, -1)))
    if choice == 1:
        client.zadd(key, {member: score})
        return Damage(key, f"score {score}", (member,))
    after = altered(rnd, member)
    client.zrem(key, member)
    client.zadd(key, {after: score})
    return Damage(key, f"member at {score}", (member,), (after,))


def _damage_stream(client: Any, rnd: random.Random, key: bytes) -> Damage:
    fields = {junk(rnd): junk(rnd), rnd.choice([b"event", b"n", b"id", b"at"]): junk(rnd)}
    pairs = [one for pair in fields.items() for one in pair]
    client.execute_command("XADD", key, "*", *pairs)
    return Damage(key, "new entry", (), tuple(pairs))
