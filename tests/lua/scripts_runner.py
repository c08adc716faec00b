"""Calls the scripts as the protocol does, with keys and arguments put in order by the names in their headers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import redis

from redis_message_queue import envelope
from redis_message_queue.keys import QueueKeys
from redis_message_queue.scripts import Script, script

KEYS = QueueKeys.of("orders")
HOUR_US = 3_600_000_000
FRESH, WOKEN, ON_WATCH = 0, 1, 2  # where a claim comes from

_ARGUMENTS = re.compile(r"^-- ARGV {2}(.*?)^-- Returns", re.MULTILINE | re.DOTALL)

Dump = dict[bytes, Any]
Held = Iterable["Taken | tuple[bytes, int]"]


@cache
def argument_names(source: str) -> tuple[str, ...]:
    """The names in a header's ARGV paragraph, as far as they stand once; pairs that follow have none."""
    paragraph = _ARGUMENTS.search(source)
    rows = re.split(r"\||\n--", paragraph[1]) if paragraph else []
    return tuple(row.split(":")[0].strip() for row in rows if ":" in row)


@dataclass(frozen=True)
class Taken:
    """A message that a claim brought."""

    id: bytes
    payload: bytes
    lease: int
    count: int
    origin: str


@dataclass(frozen=True)
class Claimed:
    """The answer of a claim. A repetition may differ in `wait_us`: the watch is taken once."""

    again: bool
    dead: tuple[tuple[bytes, int], ...]
    notes: bytes
    taken: tuple[Taken, ...]
    wait_us: int = field(compare=False)

    @property
    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.taken]

    @property
    def only(self) -> Taken:
        (one,) = self.taken
        return one


@dataclass
class Settings:
    """What a queue's options become in the scripts' arguments."""

    lease_us: int = HOUR_US
    most: int = 0
    limit: int = 0
    overload: str = "refuse"
    window_ms: int = 60_000
    dlq_limit: int = 0
    keep_ms: int = 60_000


class Caller:
    """One caller of the queue: a slot of the reply cache, and the number of its last call."""

    def __init__(self, client: redis.Redis, slot: str = "a", **settings: Any) -> None:
        self.client = client
        self.reply = KEYS.reply(slot)
        self.settings = Settings(**settings)
        self.number = 0
        self.last: Callable[[], Any] = lambda: None  # sends the last call once more, byte for byte

    # The verbs

    def publish(
        self,
        payload: bytes,
        *,
        id: bytes | None = None,
        marker: str | None = None,
        call: int | None = None,
        tenant: bytes | None = None,
    ) -> int | bytes:
        head, body = envelope.head(id or fresh_id()), payload
        if tenant is not None:
            head, body = bytes([head[0] | envelope.HAS_TENANT]) + head[1:], bytes([len(tenant)]) + tenant + payload
        keys = {} if marker is None else {"marker": KEYS.deduplication(marker)}
        return self._send("publish", keys, call=self._numbered(call), head=head, body=body)

    def claim(
        self,
        count: int = 1,
        *,
        slice_us: int = 0,
        woken: int = FRESH,
        call: int | None = None,
    ) -> Claimed:
        return self._send(
            "claim",
            {},
            read=_read_claim,
            call=self._numbered(call),
            count=count,
            slice_us=slice_us,
            woken=woken,
        )

    def settle(self, held: Held, *, kept: str | None = None, limit: int = 0, call: int | None = None) -> bytes:
        keys = {} if kept is None else {"kept": kept}
        return self._send("settle", keys, held, limit=limit, call=self._numbered(call))

    def give_back(self, held: Held, *, forgiven: bool = False, call: int | None = None) -> bytes:
        return self._send("give_back", {}, held, forgiven=int(forgiven), call=self._numbered(call))

    def renew(self, held: Held) -> bytes:
        return self._send("renew", {}, held)

    def ring(self) -> int:
        return self._send("ring", {})

    def repeat(self) -> Any:
        """Send the last call once more."""
        return self.last()

    # What makes a test short

    def publish_all(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Publish in one go, and say which ids the messages got."""
        ids = []
        with self._pipeline("publish") as pipe:
            for payload in payloads:
                ids.append(fresh_id())
                head = envelope.head(ids[-1])
                pipe.evalsha(*self._words("publish", {}, (), call=self._numbered(None), head=head, body=payload))
            assert pipe.execute() == [1] * len(ids)
        return ids

    def claim_one_by_one(self, times: int, woken: int = FRESH) -> list[Claimed]:
        """Claims of one message each, as quickly as the server can run them."""
        with self._pipeline("claim") as pipe:
            for _ in range(times):
                words = self._words("claim", {}, (), call=self._numbered(None), count=1, slice_us=0, woken=woken)
                pipe.evalsha(*words)
            return [_read_claim(reply) for reply in pipe.execute()]

    def hold(self, *payloads: bytes) -> tuple[Taken, ...]:
        """Publish and claim at once."""
        self.publish_all(payloads)
        return self.claim(len(payloads)).taken

    def expire(self) -> None:
        """Every lease runs out, in the order of the deadlines."""
        self.pass_time(2 * HOUR_US)

    def pass_time(self, microseconds: int) -> None:
        """For the leases."""
        if deadlines := self.deadlines():
            self.client.zadd(KEYS.leases, {id: deadline - microseconds for id, deadline in deadlines.items()})

    def deadlines(self) -> dict[bytes, float]:
        return dict(self.client.zrange(KEYS.leases, 0, -1, withscores=True))

    def hush(self) -> None:
        """Take the token from the bell."""
        self.client.delete(KEYS.bell)

    def rings(self) -> int:
        """How many tokens lie in the bell."""
        return self.client.llen(KEYS.bell)

    def key(self, name: str) -> str:
        """The key that a header calls by this name."""
        special = {
            "dlq": KEYS.dead_letter,
            "reply": self.reply,
            "kept": KEYS.completed,
            "marker": KEYS.deduplication("a key"),
        }
        return special.get(name) or getattr(KEYS, name)

    # How it is done

    def _numbered(self, call: int | None) -> bytes:
        """This number or the next one, as the text that the scripts compare."""
        if call is None:
            call = self.number = self.number + 1
        return b"%012d" % call

    def _send(
        self,
        name: str,
        keys: dict[str, str],
        held: Held = (),
        read: Callable[[Any], Any] = lambda reply: reply,
        **given: Any,
    ) -> Any:
        words = self._words(name, keys, held, **given)

        def send() -> Any:
            try:
                return read(self.client.evalsha(*words))
            except redis.exceptions.NoScriptError:
                return read(self.client.eval(script(name).source, *words[1:]))

        self.last = send
        return send()

    def _words(self, name: str, keys: dict[str, str], held: Held, **given: Any) -> list[Any]:
        wanted = script(name)
        names = self._key_names(wanted, keys)
        every = {one.name: getattr(self.settings, one.name) for one in fields(Settings)}
        every |= {"leased": int(self.settings.lease_us > 0)} | given
        pairs = [(one.id, one.lease) if isinstance(one, Taken) else one for one in held]
        return [
            wanted.sha,
            len(names),
            *(keys.get(one) or self.key(one) for one in names),
            *(every[one] for one in argument_names(wanted.source) if one not in self._left_out(name)),
            *(part for pair in pairs for part in pair),
        ]

    def _key_names(self, wanted: Script, given: dict[str, str]) -> list[str]:
        """A script's keys in their order, without the last one where that may be left out and is."""
        left_out = {"marker", "kept"} - given.keys()
        return [name for name in wanted.keys if name not in left_out]

    def _left_out(self, name: str) -> tuple[str, ...]:
        """The arguments that are not sent."""
        return ("limit", "overload") if name == "publish" and not self.settings.limit else ()

    def _pipeline(self, name: str) -> Any:
        self.client.script_load(script(name).source)
        return self.client.pipeline(transaction=False)


def _read_claim(reply: Any) -> Claimed:
    """A bare message is the usual case."""
    if isinstance(reply, bytes):
        return Claimed(False, (), b"", (_read_taken(reply, b"1:1:line"),), -1)
    again, wait_us, dead, notes, *rest = reply
    return Claimed(
        again=again == 1,
        dead=tuple((dead[at], int(dead[at + 1])) for at in range(0, len(dead), 2)),
        notes=notes,
        taken=tuple(_read_taken(rest[at], rest[at + 1]) for at in range(0, len(rest), 2)),
        wait_us=wait_us,
    )


def _read_taken(stored: bytes, ticket: bytes) -> Taken:
    opened = envelope.Envelope(stored)
    lease, count, origin = ticket.split(b":")
    return Taken(opened.id, opened.payload, int(lease), int(count), origin.decode())


def fresh_id() -> bytes:
    return os.urandom(16)


def numbered(count: int) -> list[bytes]:
    """So many payloads that tell their order."""
    return [b"message %d" % place for place in range(count)]


# How each type is read whole.
_READ: dict[bytes, Callable[[Any, bytes], Any]] = {
    b"string": lambda pipe, key: pipe.get(key),
    b"list": lambda pipe, key: pipe.lrange(key, 0, -1),
    b"hash": lambda pipe, key: pipe.hgetall(key),
    b"zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
}


def dump(client: redis.Redis) -> Dump:
    """Everything that the server holds, apart from the time that keys have left."""
    keys = sorted(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
        for key, kind in zip(keys, pipe.execute(), strict=True):
            _READ[kind](pipe, key)
        return dict(zip(keys, pipe.execute(), strict=True))


def without_deadlines(dumped: Dump) -> Dump:
    """The same, with leases in their order alone: to renew one changes nothing else."""
    leases = [id for id, _ in dumped.get(KEYS.leases.encode(), [])]
    return dumped | {KEYS.leases.encode(): leases}
