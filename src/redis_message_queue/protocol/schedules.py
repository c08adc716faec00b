"""Schedules: messages that the consumers of a queue publish again and again, each tick once.

A schedule is a record in Redis with the tick that was published last. The alarm `s` among the leases tells one waiting
consumer that a tick is due. It works out which ticks these are, and one script compares the record with what the
consumer has read, stores the messages and advances the record. Whoever comes second finds another record.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from redis_message_queue.protocol.calls import Calls, ReplySlot, log, publishing_rules
from redis_message_queue.protocol.operate.pages import check_choice
from redis_message_queue.protocol.port import Argument, Command, split
from redis_message_queue.protocol.publish.confirm import FULL, dropped_ids
from redis_message_queue.protocol.publish.sender import Published, chunk_ids
from redis_message_queue.protocol.schedule_timing import MOST_MISSED, Timing
from redis_message_queue.stored import envelope, headers
from redis_message_queue.stored.keys import script_keys
from redis_message_queue.values.checks import text
from redis_message_queue.values.errors import ConfigurationError, PayloadTypeError, RetryBudgetExhaustedError
from redis_message_queue.values.messages import Schedule, moment
from redis_message_queue.values.plain_values import decoded, described, plain

if TYPE_CHECKING:
    from redis_message_queue.protocol.drain import DrainGate
    from redis_message_queue.protocol.parts import Part
    from redis_message_queue.protocol.publish.message_builder import Message, MessageBuilder
    from redis_message_queue.protocol.publish.publisher import Publisher
    from redis_message_queue.protocol.store import Store

MissedTicks = Literal["one", "all", "skip"]

MOST_SCHEDULES = 1_000  # of one queue
_PAGE = 100  # schedules that one script reads
_CHUNK_MESSAGES, _CHUNK_BYTES = 100, 1_000_000  # of one schedule that one script stores
_LONGEST_NAME = 255  # bytes
_LATE_US = 60_000_000  # a tick that is later than this is skipped, if its schedule skips missed ticks
_TRY_SECONDS = 1.0  # then the alarm tells another consumer
_NEVER = "inf"


class ScheduleRecord(NamedTuple):
    """What Redis has of a schedule; bytes that another program wrote may be anything."""

    name: bytes
    next: float  # microseconds of its next tick
    definition: bytes = b""
    payload: bytes = b""
    timing: bytes = b""
    revision: bytes = b""
    created: bytes = b""
    after: bytes = b""
    last: bytes = b""

    def times(self) -> tuple[Timing, int]:
        """Return when its ticks are, and the tick after which the next one comes; raise ValueError if it is damaged."""
        if not (self.after.isdigit() and len(self.after) < 18 and self.revision):
            raise ValueError("its record is damaged")
        return Timing.from_json(self.timing), int(self.after)

    def details(self) -> Details:
        """Return what each of its messages has beside the payload; raise ValueError if it is damaged."""
        try:
            found = json.loads(self.definition)
            tenant, given, missed = found["tenant"], found["headers"], found["missed"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("its definition is damaged") from None
        if not isinstance(given, dict) or missed not in ("one", "all", "skip"):
            raise ValueError("its definition is damaged")
        return Details(b"" if tenant is None else envelope.tenant_name(tenant), given, missed)


@dataclass(frozen=True, slots=True)
class Details:
    """What the messages of a schedule have beside their payload, and what becomes of missed ticks."""

    tenant: bytes
    headers: dict[str, str]
    missed: str

    def chosen(self, ticks: Sequence[int], now: int) -> Sequence[int]:
        """Return those of the ticks that are due which get a message."""
        if self.missed == "all":
            return ticks
        is_late = self.missed == "skip" and bool(ticks) and now - ticks[-1] > _LATE_US
        return () if is_late else ticks[-1:]

    def extras(self, name: str, tick: int) -> bytes:
        """Return the headers of the message for one tick."""
        about = {"schedule": name, "scheduled_for": moment(tick / 1_000_000).isoformat()}
        return headers.encode(self.headers | about, "headers")


class PartScheduler:
    """Defines and lists the schedules of one part of a queue, and publishes their ticks."""

    def __init__(self, store: Store, builder: MessageBuilder, publisher: Publisher, gate: DrainGate) -> None:
        self._store = store
        self._builder = builder
        self._publisher = publisher
        self._gate = gate
        self._logged: dict[bytes, tuple[bytes, str]] = {}  # the last trouble with each schedule, logged once

    @property
    def _calls(self) -> Calls:
        self._store.capabilities.require("schedules")
        return self._store.calls

    # -- what the user asks

    def is_of(self, part: Part) -> bool:
        """Return whether its schedules are in this part."""
        return part in self._store.parts

    async def define(
        self,
        name: str,
        message: Message,
        cron: str | None,
        every_seconds: float | None,
        timezone: str,
        tenant: str | None,
        given_headers: Any,
        missed: MissedTicks,
    ) -> bool:
        """Store a schedule; returns False if it was there already, exactly like this."""
        calls, name = self._calls, checked_name(name)
        timing = Timing.checked(cron, every_seconds, timezone)
        check_choice("missed", missed, MissedTicks)
        if given_headers is not None:
            headers.encode(given_headers, "headers")
        payload, own = self._builder.encode(message), dict(given_headers or {})
        details = Details(b"" if tenant is None else envelope.tenant_name(tenant), own, missed)
        details.extras(name, 0)  # raises if all headers together are too long
        definition = {
            "timing": timing.to_json(),
            "tenant": None if tenant is None else plain(tenant),
            "headers": own,
            "missed": plain(missed),
        }
        now, _ = await self._read(0, "now", 0)
        first = timing.next_after(now)
        arguments = (name, MOST_SCHEDULES, json.dumps(definition, ensure_ascii=False, sort_keys=True), payload)
        rest = (timing.to_json(), calls.port.new_id().hex(), now, _NEVER if first is None else first)
        reply = await self._call("schedule", name, (*arguments, *rest))
        if reply == FULL:
            raise ConfigurationError(
                f"the queue has {MOST_SCHEDULES:,} schedules, and that is the most; remove those that nobody needs"
            )
        if reply == b"changed":
            log.info("%s: schedule %s was changed", calls.keys.prefix, name)
        return bool(reply != b"same")

    async def remove(self, name: str) -> bool:
        """Remove a schedule; returns whether there was one."""
        name = checked_name(name)
        return bool(await self._call("unschedule", name, (name,)) == b"1")

    async def list(self) -> builtins.list[Schedule]:
        """Return all schedules, those with the next tick first."""
        found: dict[bytes, ScheduleRecord] = {}
        while len(found) <= 2 * MOST_SCHEDULES:
            _, records = await self._read(len(found), "+inf", _PAGE)
            found.update((one.name, one) for one in records)
            if not records:
                break
        return [_public(one, decode=self._store.decodes) for one in found.values()]

    # -- what a consumer does

    async def publish_due(self, limit: float | None) -> None:
        """Publish the ticks that are due. What goes wrong is logged: the consumer has messages to work on.

        It ends at the ``limit``. A tick that could not be published is due again a second later.
        """
        if not self._store.capabilities.schedules or self._gate.is_shut:
            return
        try:
            now, records = await self._read(0, "now", _PAGE, limit)
        except Exception as error:
            self._log_trouble(ScheduleRecord(b"", 0.0), error)
            return
        self._logged.pop(b"", None)
        for one in records:
            try:
                await self._publish_ticks(one, now, limit)
            except Exception as error:
                self._log_trouble(one, error)

    async def _publish_ticks(self, record: ScheduleRecord, now: int, limit: float | None) -> None:
        """Publish the ticks of one schedule that are due, and advance it."""
        (timing, after), details, name = record.times(), record.details(), _name_of(record)
        due = timing.due(after, now)
        chosen = details.chosen(due, now)
        if len(due) >= MOST_MISSED:
            log.warning("%s: schedule %s has missed %d ticks or more", self._calls.keys.prefix, name, MOST_MISSED)
        bodies = [envelope.body(record.payload, details.tenant, details.extras(name, tick)) for tick in chosen]
        pairs = list(zip(chosen, bodies, strict=True))
        # One script, with nothing to publish, if the alarm was early or all ticks are skipped.
        options = self._calls.options
        most = min(
            _CHUNK_MESSAGES, options.max_pending_length or MOST_MISSED, options.max_pending_per_tenant or MOST_MISSED
        )
        chunks = list(split(pairs, [len(body) for body in bodies], most, _CHUNK_BYTES)) or [[]]
        for nth, chunk in enumerate(chunks, 1):
            done = chunk[-1][0] if nth < len(chunks) else (due or [after])[-1]
            following = timing.next_after(done)
            last = chunk[-1][0] if chunk else ""
            words = (name, record.revision, after, done, last, _NEVER if following is None else following)
            if not await self._send_ticks(record, words, [body for _, body in chunk], limit):
                return
            after = done
        self._logged.pop(record.name, None)

    async def _send_ticks(
        self, record: ScheduleRecord, words: tuple[Argument, ...], bodies: Sequence[bytes], limit: float | None
    ) -> bool:
        """Store messages for ticks. Returns False if another consumer has done so, or there is no room."""
        calls = self._calls
        started, new_id = calls.port.now(), calls.port.new_id()
        details = [part for body in bodies for part in ("", 0, body)]
        reply = await self._call(
            "tick", _name_of(record), (new_id[: envelope.BASE_BYTES], *words, *details), limit, publishes=True
        )
        if reply == FULL:
            self._log_trouble(record, "the queue is full")
        if reply[:1] != b"1":
            return False
        ids = chunk_ids(new_id, len(bodies))
        await self._publisher.emit_published(ids, Published([True] * len(bodies), dropped_ids(reply[1:])), started)
        for message_id in ids:
            log.debug("%s: schedule %s published message %s", calls.keys.prefix, _name_of(record), message_id.hex())
        return True

    # -- calls

    async def _call(
        self,
        verb: str,
        name: str,
        arguments: tuple[Argument, ...],
        limit: float | None = None,
        *,
        publishes: bool = False,
    ) -> bytes:
        """Run one of the numbered scripts for a schedule."""
        calls = self._calls
        await calls.prepare(limit)
        settings: tuple[Argument, ...] = (int(calls.keep_seconds * 1000),)
        if publishes:
            _, *rules = publishing_rules(calls.options)  # without the deduplication window: a tick is no duplicate
            settings = (*settings, calls.keys.tenant_pending(""), calls.keys.expired(""), *rules)
        slot = calls.acquire_slot()
        try:
            numbered = (*settings, slot.next_call(), *arguments)
            send = partial(calls.call, self._command(verb, slot), numbered, extra_keys=(calls.keys.schedule(name),))
            reply: bytes = await self._within(limit, send) if publishes else await send()
            return reply
        finally:
            calls.release_slot(slot)

    def _command(self, verb: str, slot: ReplySlot) -> Command:
        one = self._calls.script(verb)
        return Command(one, script_keys(self._calls.keys, one.keys, reply=slot.key))

    async def _read(
        self, skipped: int, latest: str, count: int, limit: float | None = None
    ) -> tuple[int, builtins.list[ScheduleRecord]]:
        """Return the time of the server, and schedules whose next tick is not later than ``latest``."""
        calls = self._calls
        command = Command(calls.script("read_schedules"), (calls.keys.schedules,))
        send = partial(calls.call, command, (calls.keys.schedule(""), latest, skipped, count))
        now, *found = await (send() if latest != "now" or not count else self._within(limit, send))
        triples = zip(found[::3], found[1::3], found[2::3], strict=True)
        return int(now), [
            ScheduleRecord(name, float(next), *(part or b"" for part in record)) for name, next, record in triples
        ]

    async def _within(self, limit: float | None, send: Callable[..., Any]) -> Any:
        """Send it for a second at most, and not beyond the limit: the consumer that does so has messages to handle."""
        budget = _TRY_SECONDS
        if limit is not None:
            budget = min(budget, max(0.0, limit - self._calls.port.now()))
        return await self._calls.until(limit, partial(send, budget=budget))

    def _log_trouble(self, record: ScheduleRecord, trouble: Exception | str) -> None:
        """Log why a tick was not published, once for each reason and version of its schedule."""
        calls = self._calls
        is_passing = isinstance(trouble, RetryBudgetExhaustedError) or (
            isinstance(trouble, Exception) and calls.port.is_transient(trouble)
        )
        why = trouble if isinstance(trouble, str) else described(trouble)
        if self._logged.get(record.name) == (record.revision, why):
            return
        self._logged[record.name] = (record.revision, why)
        level = log.warning if is_passing or isinstance(trouble, str) else log.error
        name = f"schedule {_shown(record)!r}" if record.name else "schedules"
        level("%s: %s: the tick was not published (%s); it is tried again", calls.keys.prefix, name, why)


def checked_name(name: Any) -> str:
    """Return the name of a schedule; raise if it cannot be one."""
    text("name", name)
    found: str = plain(name)
    if len(found.encode()) > _LONGEST_NAME:
        raise ConfigurationError(f"name must have at most {_LONGEST_NAME} bytes of UTF-8, not {len(found.encode())}")
    return found


def _name_of(record: ScheduleRecord) -> str:
    name = decoded(record.name)
    if name is None:
        raise ValueError("its name is not UTF-8")
    return name


def _shown(record: ScheduleRecord) -> str:
    """Return the name of a schedule for people, whatever its bytes are."""
    return record.name.decode("utf-8", "backslashreplace")


def _public(record: ScheduleRecord, *, decode: bool) -> Schedule:
    """Return a schedule as users see it."""
    name = _shown(record)
    known: dict[str, Any] = {
        "payload": (decoded(record.payload) if decode else None) or record.payload,
        "created_at": _moment(record.created),
        "last_tick": _moment(record.last),
        "next_tick": None if record.next == float(_NEVER) else moment(record.next / 1_000_000),
    }
    try:
        (timing, _), details = record.times(), record.details()
        timing.next_after(0)
    except (ValueError, ConfigurationError, PayloadTypeError, ImportError) as error:
        return Schedule(name=name, error=str(error), **known)
    return Schedule(
        name=name,
        cron=timing.cron,
        every_seconds=None if timing.every_us is None else timing.every_us / 1_000_000,
        timezone=timing.timezone,
        tenant=envelope.tenant_text(details.tenant) if details.tenant else None,
        headers=headers.decode({"headers": details.headers}),
        missed=details.missed,
        **known,
    )


def _moment(microseconds: bytes) -> datetime | None:
    return moment(int(microseconds) / 1_000_000) if microseconds.isdigit() and len(microseconds) < 18 else None
