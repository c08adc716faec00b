"""Calls the scripts as the protocol does, with keys and arguments put in order by the names in their headers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import accumulate, islice, pairwise
from typing import Any, TypeVar

import redis

from redis_message_queue.stored import envelope, scripts
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.envelope import TIME_AT, TOKEN_BYTES
from redis_message_queue.stored.keys import QueueKeys, script_keys
from redis_message_queue.stored.scripts import Script, script
from simulator.lua import unpacked

argument_names = cache(scripts.argument_names)
KEYS = QueueKeys.of("orders")
TARGET = QueueKeys.of("invoices")  # a queue that results are handed to
TARGET_WORDS = (
    *("pending", "wakeup", "deliveries", "leases", "tenant_ring", "tenant_backlog", "weights", "delayed"),
    *("delayed_messages", "journal", "meta", "longest"),
)
HOUR_US = 3_600_000_000
FRESH, WOKEN, TIMER_OWNER = 0, 1, 2  # where a claim comes from

T = TypeVar("T")
Dump = dict[bytes, Any]
Held = Iterable["Taken | tuple[bytes, int]"]


@dataclass(frozen=True)
class New:
    """A message that is to be enqueued."""

    payload: bytes
    tenant: bytes = b""
    due: str = ""
    marker: str | None = None
    extras: bytes = b""


@dataclass(frozen=True)
class Taken:
    """A message that a claim brought."""

    id: bytes
    payload: bytes
    attempts: int
    count: int
    origin: str
    failures: int = 0
    tenant: str | None = None
    nonce: bytes = b"?" * 20

    @property
    def token(self) -> bytes:
        return self.id + self.nonce


@dataclass(frozen=True)
class Claimed:
    """The answer of a claim. A repetition may differ in `wait_us`: the watch is taken once."""

    again: bool
    dead: tuple[tuple[bytes, int, str], ...]
    notes: bytes
    taken: tuple[Taken, ...]
    wait_us: int = field(compare=False)
    acked: bytes = b""  # what became of an ack that was sent along

    @property
    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.taken]

    @property
    def tenants(self) -> list[str | None]:
        return [one.tenant for one in self.taken]

    @property
    def only(self) -> Taken:
        (one,) = self.taken
        return one


@dataclass
class Settings:
    """What a queue's options become in the scripts' arguments."""

    lease_us: int = HOUR_US
    most: int = 0
    ttl_us: int = 0
    in_flight_limit: int = 0
    ordered: int = 0
    limit: int = 0
    tenant_limit: int = 0
    overload: str = "refuse"
    window_ms: int = 60_000
    dlq_limit: int = 0
    keep_ms: int = 60_000
    mark_ms: int = 3_600_000
    hold_ms: int = 60_000
    tenant_pending: str = KEYS.tenant_pending("")
    expired: str = KEYS.expired("")


class Caller:
    """One caller of the queue: a slot of the reply cache, and the number of its last call."""

    def __init__(self, client: Any, slot: str = "a", **settings: Any) -> None:
        self.client = client
        self.reply = KEYS.reply(slot)
        self.holder = slot.encode().ljust(15, b"-")
        self.write_state()
        self.settings = Settings(**settings)
        self.number = 0
        self.last: Callable[[], Any] = lambda: None  # sends the last call once more, byte for byte

    def write_state(self) -> None:
        """What the scripts want to find; the protocol writes it at its first contact."""
        for keys in (KEYS, TARGET):
            self.client.hsetnx(keys.meta, "version", 1)

    # The verbs

    def publish(
        self, payload: bytes, *, id: bytes | None = None, marker: str | None = None, call: int | None = None
    ) -> int:
        keys = {} if marker is None else {"marker": KEYS.deduplication(marker)}
        return self._send("publish", keys, call=self._numbered(call), head=envelope.head(id or new_id()), body=payload)

    def enqueue(
        self, *messages: New | bytes, base: bytes | None = None, form: str | None = None, call: int | None = None
    ) -> bytes:
        """A chunk in its full form, or bare, where its messages are payloads alone."""
        news = [one if isinstance(one, New) else New(one) for one in messages]
        words = self._enqueue_words(news, base or fresh_base(), form or _form_of(news), call)
        return self._send_words("enqueue", words)

    def backfill(
        self, *messages: New | bytes, split: str = "orders.json 0", before: str = "", after: str = "1"
    ) -> bytes:
        """The next rows of a split."""
        news = [one if isinstance(one, New) else New(one) for one in messages]
        words = self._words("backfill", {}, (), base=fresh_base(), split=split, before=before, after=after)
        return self._send_words("backfill", [*words, *_details(news)[1][2::3]])

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
            read=partial(_read_claim, nonce=self._nonce(call)),
            call=self._numbered(call),
            count=count,
            slice_us=slice_us,
            woken=woken,
        )

    def take(self, *, call: int | None = None) -> Claimed:
        """As the protocol does: in any but the usual case, the same call goes to claim.lua."""
        nonce, number = self._nonce(call), self._numbered(call)
        words = self._words("take", {}, (), call=number, nonce=nonce)
        full = self._words("claim", {}, (), call=number, count=1, slice_us=0, woken=FRESH)
        return self._send_words("take", words, partial(_read_claim, nonce=nonce), ("claim", full))

    def ack_one(self, held: Held, *, call: int | None = None) -> bytes:
        """As the protocol does: in any but the usual case, the same call goes to settle.lua."""
        (token,), number = _tokens(held), self._numbered(call)
        words = self._words("ack_one", {}, (), call=number, token=token)
        full = self._words("settle", {}, held, limit=0, note="", call=number)
        return self._send_words("ack_one", words, otherwise=("settle", full))

    def ack_and_take(self, held: Held, *, call: int | None = None) -> Claimed:
        """As the protocol does: in any but the usual case, the same calls go to settle.lua and claim.lua.

        The ack has a slot of its own, and the number of the claim.
        """
        (token,), nonce, number = _tokens(held), self._nonce(call), self._numbered(call)
        words = self._words("ack_and_take", {}, (), call=number, nonce=nonce, ack_call=number, token=token)
        ack = self._words("settle", {"reply": self.key("ack_reply")}, held, limit=0, note="", call=number)
        claim = self._words("claim", {}, (), call=number, count=1, slice_us=0, woken=FRESH)

        def send() -> Claimed:
            reply, acked = self._evaluate("ack_and_take", words), b"1"
            if not reply:
                acked, reply = self._evaluate("settle", ack), self._evaluate("claim", claim)
            return replace(_read_claim(reply, nonce), acked=acked)

        self.last = partial(self._with_state, send)
        return self.last()

    def settle(
        self,
        held: Held,
        *,
        kept: str | None = None,
        limit: int = 0,
        note: dict[str, Any] | str | None = None,
        call: int | None = None,
    ) -> bytes:
        keys = {} if kept is None else {"kept": kept, "records": records_beside(kept)}
        told = note if isinstance(note, str) else "" if kept is None else json.dumps(note or {})
        return self._send("settle", keys, held, limit=limit, note=told, call=self._numbered(call))

    def requeue(self, held: Held, *, forgiven: bool = False, call: int | None = None) -> bytes:
        return self._send("requeue", {}, held, forgiven=int(forgiven), call=self._numbered(call))

    def retry_later(self, held: Held, delay_us: int = HOUR_US, *, handled: str = "", call: int | None = None) -> bytes:
        """Exactly one message; in a sequence, as the other verbs of a holder want it."""
        told: dict[str, Any] = {"delay_us": delay_us, "error_type": "ValueError", "handled": handled}
        return self._send("retry_later", {}, held, **told, call=self._numbered(call))

    def hand_off(
        self, held: Held, *news: New | bytes, keeps: bool = False, limit: int = 0, call: int | None = None
    ) -> bytes:
        """Exactly one message leaves, and these enter the other queue, whose limit can be set."""
        results = [one if isinstance(one, New) else New(one) for one in news]
        places, details = _details(results)
        kept = 0 if keeps else -1
        sha, own, *words = self._words(
            "hand_off",
            {"kept": KEYS.completed, "records": KEYS.records("completed")},
            held,
            limit=kept,
            kept_limit=kept,
            note="{}",
            call=self._numbered(call),
        )
        theirs = [*script_keys(TARGET, TARGET_WORDS), *(TARGET.deduplication(marker) for marker in places)]
        words[own:own] = theirs
        lines = [TARGET.tenant_pending(""), TARGET.expired("")]
        rules = [*lines, self.settings.window_ms, limit, self.settings.tenant_limit, self.settings.overload]
        return self._send_words(
            "hand_off", [sha, own + len(theirs), *words, *rules, fresh_base(), "version", len(results), *details]
        )

    def redrive(
        self,
        count: int,
        *,
        tenant: bytes = b"",
        marker: str | None = None,
        base: bytes | None = None,
        call: int | None = None,
    ) -> bytes:
        """So many dead letters, the oldest first, all for one tenant, and with one key if any."""
        payloads = self.client.lrange(KEYS.dead_letter, -count, -1)[::-1] if count else []
        notes = self.client.lrange(KEYS.records("dlq"), -count, -1)[::-1] if count else []
        keys = {} if marker is None else {"markers": KEYS.deduplication(marker)}
        words = self._words("redrive", keys, (), call=self._numbered(call), base=base or fresh_base())
        for place, payload in enumerate(payloads):
            body = envelope.body(payload, tenant, b'{"replay_of": "before"}')
            digest = hashlib.sha1(payload).hexdigest()
            record = [place, hashlib.sha1(notes[place]).hexdigest()] if place < len(notes) else [-1, ""]
            words += [place, digest, *record, int(marker is not None), body]
        return self._send_words("redrive", words)

    def restore(self, *messages: tuple[str, bytes, str, bytes], call: int | None = None) -> bytes:
        """Messages of an export: due, entry, what else is known and what was stored, each with a marker of its own."""
        sha, keys, *words = self._words("restore", {}, (), call=self._numbered(call))
        words[keys:keys] = _markers_of(stored[1:TIME_AT].hex() for *_, stored in messages)
        details = [part for one in messages for part in one]
        return self._send_words("restore", [sha, keys + len(messages), *words, *details])

    def append(self, *messages: tuple[bytes, bytes], call: int | None = None) -> bytes:
        """Dead letters of an export: payload and record, each with a marker of its own."""
        sha, keys, *words = self._words("append", {}, (), call=self._numbered(call))
        words[keys:keys] = _markers_of(payload.hex() for payload, _ in messages)
        details = [part for one in messages for part in one]
        return self._send_words("append", [sha, keys + len(messages), *words, *details])

    def schedule(
        self,
        name: str = "nightly",
        payload: bytes = b"report",
        *,
        timing: str = "daily",
        next: int | str | None = None,
        created: int | None = None,
        most: int = 1_000,
        call: int | None = None,
    ) -> bytes:
        """Define a schedule whose first tick is due in an hour, or at another time."""
        now, keys = created or self.now_us(), {"schedule": KEYS.schedule(name)}
        given: dict[str, Any] = {"name": name, "payload": payload, "timing": timing, "definition": timing, "most": most}
        next = now + HOUR_US if next is None else next
        return self._send(
            "schedule", keys, call=self._numbered(call), revision=new_id(), created=now, next=next, **given
        )

    def unschedule(self, name: str = "nightly", *, call: int | None = None) -> bytes:
        return self._send("unschedule", {"schedule": KEYS.schedule(name)}, call=self._numbered(call), name=name)

    def read_schedules(self, latest: str = "+inf", *, skipped: int = 0, count: int = 100) -> list[Any]:
        return self._send("read_schedules", {}, records=KEYS.schedule(""), latest=latest, skipped=skipped, count=count)

    def tick(
        self,
        *messages: New | bytes,
        name: str = "nightly",
        after: int | None = None,
        revision: bytes | None = None,
        done: int | None = None,
        next: int | str | None = None,
        call: int | None = None,
    ) -> bytes:
        """Publish these messages for the ticks of a schedule up to now; the next tick is due in an hour."""
        record = self.client.hgetall(KEYS.schedule(name))
        done = self.now_us() if done is None else done
        words = self._words(
            "tick",
            {"schedule": KEYS.schedule(name)},
            (),
            call=self._numbered(call),
            base=fresh_base(),
            name=name,
            revision=record.get(b"revision", b"") if revision is None else revision,
            after=record.get(b"after", b"") if after is None else after,
            done=done,
            last=done if messages else "",
            next=done + HOUR_US if next is None else next,
        )
        _, details = _details([one if isinstance(one, New) else New(one) for one in messages])
        return self._send_words("tick", [*words, *details])

    def stats(self, cursor: bytes = b"-inf", last: bytes = b"") -> list[Any]:
        return self._send("stats", {}, cursor=cursor, last=last)

    def read_page(
        self, *asked: tuple[str, tuple[Any, ...]], max_elements: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> list[Any]:
        """Of each key what is asked for."""
        keys, arguments = [key for key, _ in asked], [word for _, words in asked for word in words]
        words = [script("read_page").sha, len(keys), *keys, max_elements, max_bytes, *arguments]
        return self._send_words("read_page", words)

    def sweep(
        self,
        what: str,
        whose: str | bytes = "",
        *others: str | bytes,
        began: int | None = None,
        call: int | None = None,
    ) -> bytes:
        """Lines, what is delayed, orphans, or the list of those that are completed; what was there by now."""
        keys = {"kept": KEYS.completed, "records": KEYS.records("completed")} if what == "list" else {}
        told = {"event": "purged", "target": "completed" if what == "list" else what}
        began = self.now_us() if began is None else began
        words = self._words("sweep", keys, (), **told, call=self._numbered(call), what=what, whose=whose, began=began)
        return self._send_words("sweep", [*words, *others])

    def cancel(self, id: bytes, *, call: int | None = None, withdraws: bool = False) -> bytes:
        return self._send("cancel", {}, id=id, call=self._numbered(call), withdraws=int(withdraws))

    def pause(self, tenant: str | bytes = "", *, call: int | None = None) -> bytes:
        return self._send("pause", {}, tenant=tenant, pauses=1, call=self._numbered(call))

    def resume(self, tenant: str | bytes = "", *, call: int | None = None) -> bytes:
        return self._send("pause", {}, tenant=tenant, pauses=0, call=self._numbered(call))

    def renew(self, held: Held) -> bytes:
        return self._send("renew", {}, held)

    def open_queue(
        self, *, drains: int = 1, journal: str = "", weights: dict[str, int] | None = None, partitions: int = 1
    ) -> int:
        """What the protocol writes at its first contact."""
        rules: dict[str, Any] = {"version": 1, "version_field": "version_journal", "identity": "ab", "journal": journal}
        keys = {"counted": self.key("counted")} if partitions > 1 else {}
        words = self._words("open_queue", keys, (), drains=drains, partitions=partitions, soft=10, hard=100, **rules)
        return self._send_words("open_queue", [*words, *(part for one in (weights or {}).items() for part in one)])

    def grow_partition(self, old: int, new: int) -> int:
        return self._send_words("grow_partition", self._words("grow_partition", {}, (), version=1, old=old, new=new))

    def read_shared_state(self, place: str = "meta", cursor: str = "0") -> list[Any]:
        return self._send("read_shared_state", {}, place=place, cursor=cursor)

    def share_state(self, *changes: tuple[str, str, str]) -> int:
        words = self._words("share_state", {}, (), identity="ab")
        return self._send_words("share_state", [*words, *(part for one in changes for part in one)])

    def announce_worker(self, description: str = '{"pid": 1}', former: bytes = b"", idle_us: int = -1) -> bytes:
        """Keep the entry of a worker that has run for a second."""
        given: dict[str, Any] = {
            "former": former,
            "running_us": 1_000_000,
            "idle_us": idle_us,
            "description": description,
        }
        return self._send("announce_worker", {}, keep_ms=30_000, **given)

    def notify(self) -> int:
        return self._send("notify", {})

    def repeat(self) -> Any:
        """Send the last call once more."""
        return self.last()

    # What makes a test short

    def publish_all(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Publish in one go, and say which ids the messages got."""
        ids = []
        with self._pipeline("publish") as pipe:
            for payload in payloads:
                ids.append(new_id())
                head = envelope.head(ids[-1])
                pipe.evalsha(*self._words("publish", {}, (), call=self._numbered(None), head=head, body=payload))
            assert pipe.execute() == [1] * len(ids)
        return ids

    def enqueue_all(self, messages: Iterable[New]) -> list[bytes]:
        """Enqueue a thousand at a time, and say which ids the messages got."""
        waiting, ids = list(messages), []
        for start in range(0, len(waiting), 1_000):
            base, some = fresh_base(), waiting[start : start + 1_000]
            assert self.enqueue(*some, base=base) == b"1" * len(some)
            ids += chunk_ids(base, len(some))
        return ids

    def enqueue_for(self, tenant: str, *payloads: bytes) -> list[bytes]:
        """Messages of one tenant enter its line."""
        return self.enqueue_all(New(payload, tenant.encode()) for payload in payloads)

    def claim_one_by_one(self, times: int, woken: int = FRESH) -> list[Claimed]:
        """Claims of one message each, as quickly as the server can run them."""
        with self._pipeline("claim") as pipe:
            first = self.number + 1
            for _ in range(times):
                words = self._words("claim", {}, (), call=self._numbered(None), count=1, slice_us=0, woken=woken)
                pipe.evalsha(*words)
            return [_read_claim(reply, self._nonce(call)) for call, reply in enumerate(pipe.execute(), first)]

    def claim_at_last(self, count: int = 1, **how: Any) -> Claimed:
        """Claim until nobody says "again": as a consumer does when there is much to tidy up."""
        for _ in range(10):
            claimed = self.claim(count, **how)
            if not claimed.again:
                return claimed
        raise AssertionError("again and again")

    def hold(self, *payloads: bytes, tenant: str | None = None) -> tuple[Taken, ...]:
        """Publish and claim at once."""
        if tenant is None:
            self.publish_all(payloads)
        else:
            self.enqueue_for(tenant, *payloads)
        return self.claim(len(payloads)).taken

    def open_journal(self, *, payload: int = 0, soft: int = 1_000_000, hard: int = 10_000_000) -> None:
        """From now on everything is told."""
        rules = {"journal": payload, "journal_soft": soft, "journal_hard": hard}
        self.client.hset(KEYS.meta, mapping=rules)

    def journal(self) -> list[dict[str, str]]:
        """What has been told, the oldest first."""
        entries = self.client.xrange(KEYS.journal)
        return [{name.decode(): value.decode() for name, value in entry.items()} for _, entry in entries]

    def weigh(self, **weights: int) -> None:
        """Tenants get weights."""
        self.client.hset(KEYS.weights, mapping=weights)

    def expire(self) -> None:
        """Every lease runs out, in the order of the deadlines."""
        self.pass_time(2 * HOUR_US)

    def pass_time(self, microseconds: int) -> None:
        """For the leases."""
        if deadlines := self.deadlines():
            self.client.zadd(KEYS.leases, {id: deadline - microseconds for id, deadline in deadlines.items()})

    def pass_delays(self, microseconds: int = 2 * HOUR_US) -> None:
        """For the messages that wait for their time, and the alarm that knows of them."""
        if due_times := self.due_times():
            self.client.zadd(KEYS.delayed, {id: due - microseconds for id, due in due_times.items()})
        if (alarm := self.client.zscore(KEYS.leases, "d")) is not None:
            self.client.zadd(KEYS.leases, {"d": alarm - microseconds})

    def deadlines(self) -> dict[bytes, float]:
        """Of the leases, without the alarms beside them."""
        found = self.client.zrange(KEYS.leases, 0, -1, withscores=True)
        return {token: score for token, score in found if len(token) == TOKEN_BYTES}

    def due_times(self) -> dict[bytes, float]:
        return dict(self.client.zrange(KEYS.delayed, 0, -1, withscores=True))

    def now_us(self) -> int:
        """By the server's clock."""
        seconds, microseconds = self.client.time()
        return seconds * 1_000_000 + microseconds

    def take_token(self) -> None:
        """Take the token from the wake-up key."""
        self.client.delete(KEYS.wakeup)

    def tokens(self) -> int:
        """How many tokens lie in the wake-up key."""
        return self.client.llen(KEYS.wakeup)

    def records(self, kept: str) -> list[dict[str, Any]]:
        """What is remembered beside a list."""
        return [json.loads(record) for record in self.client.lrange(records_beside(kept), 0, -1)]

    def key(self, name: str) -> str:
        """The key that a header calls by this name."""
        own = {"reply": self.reply, "ack_reply": self.reply + "-ack"}
        return own.get(name) or _shared_key(name, KEYS, TARGET)

    # How it is done

    def _nonce(self, call: int | None) -> bytes:
        """What the leases of this call have, or of the next one."""
        return self.holder + (self.number + 1 if call is None else call).to_bytes(5, "big")

    def _numbered(self, call: int | None) -> bytes:
        """This number or the next one, as the text that the scripts compare."""
        if call is None:
            call = self.number = self.number + 1
        return b"%012d" % call

    def _send(
        self,
        name: str,
        keys: dict[str, str],
        /,
        held: Held = (),
        read: Callable[[Any], Any] = lambda reply: reply,
        **given: Any,
    ) -> Any:
        return self._send_words(name, self._words(name, keys, held, **given), read)

    def _send_words(
        self,
        name: str,
        words: list[Any],
        read: Callable[[Any], Any] = lambda reply: reply,
        otherwise: tuple[str, list[Any]] | None = None,  # what to send if it answers that this is not its case
    ) -> Any:
        def send() -> Any:
            reply = self._evaluate(name, words)
            return read(self._evaluate(*otherwise) if otherwise is not None and not reply else reply)

        self.last = partial(self._with_state, send)
        return self.last()

    def _with_state(self, send: Callable[[], T]) -> T:
        try:
            return send()
        except redis.exceptions.ResponseError as error:
            if "NOSTATE" not in str(error):
                raise
            self.write_state()  # a test has flushed the server
            return self._with_state(send)

    def _evaluate(self, name: str, words: list[Any]) -> Any:
        try:
            return self.client.evalsha(*words)
        except redis.exceptions.NoScriptError:
            return self.client.eval(script(name).source, *words[1:])

    def _words(self, name: str, keys: dict[str, str], held: Held, /, **given: Any) -> list[Any]:
        wanted = script(name)
        names = self._key_names(wanted, keys)
        every = {one.name: getattr(self.settings, one.name) for one in fields(Settings)}
        every |= {
            "leased": int(self.settings.lease_us > 0),
            "holder": self.holder,
            "tokens": b"".join(_tokens(held)),
        } | given
        return [
            wanted.sha,
            len(names),
            *(keys.get(one) or self.key(one) for one in names),
            *(every[one] for one in argument_names(wanted.source)),
        ]

    def _enqueue_words(self, news: list[New], base: bytes, form: str, call: int | None) -> list[Any]:
        sha, keys, *words = self._words("enqueue", {}, (), call=self._numbered(call), base=base, form=form)
        markers, details = _details(news) if form in ("full", "each") else _ready(news)
        words[keys:keys] = [KEYS.deduplication(marker) for marker in markers]
        return [sha, keys + len(markers), *words, *([one.payload for one in news] if form == "bare" else details)]

    def _key_names(self, wanted: Script, given: dict[str, str]) -> list[str]:
        """A script's keys in their order, without those at its end that may be left out and are."""
        left_out = {"marker", "markers", "kept", "targets", "sources"} - given.keys()
        if wanted.name == "open_queue":
            left_out |= {"counted"} - given.keys()
        if wanted.name in ("settle", "sweep") and "kept" in left_out:
            left_out.add("records")
        return [name for name in wanted.keys if name not in left_out]

    def _pipeline(self, name: str) -> Any:
        self.write_state()
        self.client.script_load(script(name).source)
        return self.client.pipeline(transaction=False)


@cache
def _shared_key(name: str, keys: QueueKeys, target: QueueKeys) -> str:
    """A key that is the same for all callers; `tenant_pending` and `expired` are those of the tenant acme.

    Those of a queue that results go to have their word behind `target`.
    """
    if name.startswith("target "):
        word = name.removeprefix("target ")
        return target.tenant_pending("acme") if word == "tenant_pending" else getattr(target, word)
    special = {
        "dlq": keys.dead_letter,
        "kept": keys.completed,
        "sources": keys.pending,
        "records": keys.records("dlq"),
        "marker": keys.deduplication("a key"),
        "markers": keys.deduplication("a key"),
        "tenant_pending": keys.tenant_pending("acme"),
        "expired": keys.expired("acme"),
        "schedule": keys.schedule("nightly"),
        "group": keys.group("reports"),
        "members": keys.members("reports", 1),
        "backfill": keys.backfill("orders"),
        "counted": keys.partitioned_meta(1),  # in the slot of the others, and not `meta`, which holds the state here
        "before": keys.partitioned_meta(2),
    }
    return special.get(name) or getattr(keys, name)


def _tokens(held: Held) -> list[bytes]:
    """A pair of an id and a number stands for a lease that nobody has."""
    return [one.token if isinstance(one, Taken) else one[0] + one[1].to_bytes(20, "big") for one in held]


def _markers_of(messages: Iterable[str]) -> list[str]:
    """A marker for each message; the first one has the key that other situations use too."""
    names: dict[str, str] = {}
    return [KEYS.deduplication(names.setdefault(one, one if names else "a key")) for one in messages]


def _details(news: list[New]) -> tuple[dict[str, int], list[Any]]:
    """The markers by their places, and what a script wants to know of each message."""
    markers = dict.fromkeys(one.marker for one in news if one.marker is not None)
    places = {marker: place for place, marker in enumerate(markers, 1)}
    details: list[Any] = []
    for one in news:
        body = envelope.body(one.payload, one.tenant, one.extras)
        details += [one.due, 0 if one.marker is None else places[one.marker], body]
    return places, details


def _form_of(news: list[New]) -> str:
    """The form that the protocol chooses, except for a bare one."""
    marked = sum(one.marker is not None for one in news)
    return "ready" if marked in (0, len(news)) and not any(one.due for one in news) else "full"


def _ready(news: list[New]) -> tuple[list[str], list[Any]]:
    """The markers of messages that are due now, and their preambles and payloads."""
    markers = [one.marker for one in news if one.marker is not None]
    return markers, [part for one in news for part in (envelope.preamble(one.tenant, one.extras), one.payload)]


def _read_claim(reply: Any, nonce: bytes) -> Claimed:
    """Bare messages, one or several, are the usual case."""
    if isinstance(reply, bytes):
        reply = [reply] if reply[0] < 0x90 else unpacked(reply)
    if isinstance(reply[0], bytes):
        return Claimed(False, (), b"", tuple(_read_taken(stored, b"1:1:queue:0", nonce) for stored in reply), -1)
    again, wait_us, dead, notes, *rest = reply
    return Claimed(
        again=again == 1,
        dead=tuple((dead[at], int(dead[at + 1]), dead[at + 2].decode()) for at in range(0, len(dead), 3)),
        notes=notes,
        taken=tuple(_read_taken(rest[at], rest[at + 1], nonce) for at in range(0, len(rest), 2)),
        wait_us=wait_us,
    )


def _read_taken(stored: bytes, ticket: bytes, nonce: bytes) -> Taken:
    opened = envelope.Envelope(stored)
    attempts, count, origin, failures = ticket.split(b":")
    numbers = (int(attempts), int(count), origin.decode(), int(failures))
    return Taken(opened.id, opened.payload, *numbers, opened.tenant, nonce)


def records_beside(kept: str) -> str:
    """The key of the records that belong to a list."""
    return KEYS.records(kept.rsplit("::", 1)[1])


def new_id() -> bytes:
    return os.urandom(16)


def fresh_base() -> bytes:
    """What the ids of a chunk begin with."""
    return os.urandom(envelope.BASE_BYTES)


def chunk_ids(base: bytes, count: int) -> list[bytes]:
    """The ids of a chunk: the place of each message follows what they have in common."""
    return [base + place.to_bytes(2, "big") for place in range(1, count + 1)]


def numbered(count: int, word: str = "message") -> list[bytes]:
    """So many payloads that tell their order."""
    return [b"%s %d" % (word.encode(), place) for place in range(count)]


def evaluate(client: redis.Redis, source: str, *words: Any) -> Any:
    """What a script of the tests themselves answers. It may look at any key."""
    try:
        return client.evalsha(_digest(source), 0, *words)
    except redis.exceptions.NoScriptError:
        return client.eval(source, 0, *words)


@cache
def _digest(source: str) -> str:
    return hashlib.sha1(source.encode()).hexdigest()


# One request, and not two for each of a dozen keys; and one text, because redis-py reads a long list slowly: all parts
# one after the other, with their sizes before them. A list is the number of its elements, and then these.
_EVERYTHING = """
local how = {
  string = {'GET'}, list = {'LRANGE', 0, -1}, hash = {'HGETALL'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'},
  stream = {'XRANGE', '-', '+'},
}
local sizes, parts = {}, {}
local function add(value)
  if type(value) == 'table' then
    add(tostring(#value))
    for _, one in ipairs(value) do
      add(one)
    end
  else
    sizes[#sizes + 1], parts[#parts + 1] = #value, value
  end
end
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key)['ok']
  add(key)
  add(kind)
  add(redis.call(how[kind][1], key, unpack(how[kind], 2)))
end
return table.concat(sizes, ' ') .. '\\n' .. table.concat(parts)
"""


def dump(client: redis.Redis) -> Dump:
    """Everything that the server holds, apart from the time that keys have left."""
    sizes, _, text = evaluate(client, _EVERYTHING).partition(b"\n")
    ends = list(accumulate(map(int, sizes.split()), initial=0))
    parts = iter([text[start:end] for start, end in pairwise(ends)])
    found = {key: _READ[next(parts)](parts) for key in parts}
    # The version of what is stored is there as long as the queue is.
    return {key: value for key, value in sorted(found.items()) if value != {b"version": b"1"}}


def _listed(parts: Iterator[bytes]) -> list[bytes]:
    return list(islice(parts, int(next(parts))))


def _pairs(parts: Iterator[bytes]) -> list[tuple[bytes, bytes]]:
    flat = _listed(parts)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _entry(parts: Iterator[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    assert next(parts) == b"2"  # an id and its fields
    return next(parts), dict(_pairs(parts))


_READ: dict[bytes, Callable[[Iterator[bytes]], Any]] = {
    b"string": next,
    b"list": _listed,
    b"hash": lambda parts: dict(_pairs(parts)),
    b"zset": lambda parts: [(member, float(score)) for member, score in _pairs(parts)],
    b"stream": lambda parts: [_entry(parts) for _ in range(int(next(parts)))],
}


def without_deadlines(dumped: Dump) -> Dump:
    """The same, with leases in their order alone and the alarms beside them: to renew one changes nothing else."""
    leases = dumped.get(KEYS.leases.encode(), [])
    order = [token for token, _ in leases if len(token) == TOKEN_BYTES]
    alarms = sorted((name, due) for name, due in leases if len(name) != TOKEN_BYTES)
    return dumped | {KEYS.leases.encode(): (order, alarms)}
