"""Consume, process, produce without a gap: a message leaves and its results enter other queues, in one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis_message_queue import envelope
from redis_message_queue.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    LeaseLostError,
    QueueBackpressureError,
    RedisMessageQueueError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.keys import hash_tag_of
from redis_message_queue.protocol.calls import Calls, publishing_rules
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.confirm import dropped_ids
from redis_message_queue.protocol.foreign import not_offered
from redis_message_queue.protocol.port import Argument, Command, StateMissingError
from redis_message_queue.protocol.publish import Outgoing, Published, Publisher, chunk_ids
from redis_message_queue.protocol.settle import Note
from redis_message_queue.scripts import script

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_HAND_OFF = Command(script("hand_off"), ())
_TARGET_KEYS = (
    *("pending", "bell", "deliveries", "leases", "tenants", "size", "weights", "delayed", "later"),
    *("journal", "meta", "longest"),
)
_MOST = 1_000
_MARKER_MS = 60_000  # how long a key lasts that shows whether two clients lead to one server
_SEEN_MS = 5_000  # and once it was found
_LOOK_SECONDS = 1.0  # for a server that our own client has just reached


class Target:
    """One queue that gets results, and which."""

    def __init__(self, queue: QueueProtocol, fresh_id: bytes) -> None:
        self.queue = queue
        self.messages: list[Outgoing] = []
        self._fresh_id = fresh_id

    @property
    def ids(self) -> list[bytes]:
        return chunk_ids(self._fresh_id, len(self.messages))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(getattr(self.queue.store.keys, name) for name in _TARGET_KEYS)

    def arguments(self, markers: dict[str, int]) -> list[Argument]:
        """As the script reads them; a marker is named by its place among those of all targets."""
        store = self.queue.store
        base = self._fresh_id[: envelope.BASE_BYTES]
        lines = (store.keys.line(""), store.keys.returned(""))
        parts: list[Argument] = [*lines, *publishing_rules(store.options), base, len(self.messages)]
        for one in self.messages:
            place = 0 if one.marker is None else markers.setdefault(one.marker, len(markers) + 1)
            parts += [one.due, place, envelope.body(one.payload, one.tenant, one.extras)]
        return parts


class HandOff:
    """Hands the messages of one queue's consumers off."""

    def __init__(self, queue: QueueProtocol) -> None:
        if queue.store.calls is None:
            raise not_offered(queue.store.gateway, "complete()")
        self._queue = queue
        self._calls: Calls = queue.store.calls

    async def targets(self, publish: Sequence[Any]) -> list[Target]:
        """The results by queue, checked as if they were published one by one."""
        targets: dict[str, Target] = {}
        results = _listed(publish)
        if len(results) > _MOST:
            raise ConfigurationError(f"publish holds {len(results)} messages; one step takes at most {_MOST:,}")
        for one in results:
            queue, message, details = _opened(one)
            try:
                await self._refuse_elsewhere(queue)
                queue.gate.refuse_if_shut()
                await self._open_journal(queue)
                outgoing = await queue.outbox.outgoing(message, **details)
            except RedisMessageQueueError as error:
                error.locate(queue.options.name, "complete")
                raise
            line = queue.store.keys.pending  # two objects of one queue share its limits and markers
            target = targets.get(line)
            if target is None:
                target = targets[line] = Target(queue, queue.port.fresh_id())
            target.messages.append(outgoing)
        return list(targets.values())

    @staticmethod
    async def _open_journal(target: QueueProtocol) -> None:
        assert target.store.calls is not None
        await target.store.calls.open_journal()

    async def _refuse_elsewhere(self, target: QueueProtocol) -> None:
        """One script runs on one node of one server."""
        if target.store.calls is None or not isinstance(target.store.publisher, Publisher):
            raise not_offered(target.store.gateway, "a hand-off")
        if target.message_class is not self._queue.message_class:
            raise ConfigurationTypeError(
                f"the queue {target.options.name!r} is of the other colour; hand off to one of the same package"
            )
        here, there = self._queue.store.keys.pending, target.store.keys.pending
        if self._calls.port.is_cluster and (hash_tag_of(here) is None or hash_tag_of(here) != hash_tag_of(there)):
            raise ConfigurationError(
                f"on a cluster a hand-off needs queues that share a hash tag; name them for example "
                f"'{{orders}}{self._queue.options.name}' and '{{orders}}{target.options.name}'"
            )
        await self._refuse_other_server(target, target.store.calls)

    async def _refuse_other_server(self, target: QueueProtocol, there: Calls) -> None:
        """Two clients lead to one place if the one finds a key that the other has just written."""
        here = self._calls
        known, trouble = here.port.reaches_the_same(there.port), None
        if known is None:
            known, trouble = await self._find_marker(target, there)
            if not known:  # a connection that is open may still lead to a server that is no primary any more
                await here.port.close_idle()
                await there.port.close_idle()
                known, trouble = await self._find_marker(target, there)
            if known:
                here.port.note_the_same(there.port)
        if not known:
            why = "" if trouble is None else f", or cannot be reached ({type(trouble).__name__})"
            raise ConfigurationError(
                f"the queue {target.options.name!r} is on another server or in another database{why}; a hand-off "
                "needs both queues in the same place, best with the same client. Nothing was published, and the "
                "message is still in hand"
            ) from trouble

    async def _find_marker(self, target: QueueProtocol, there: Calls) -> tuple[bool, Exception | None]:
        """Whether the target's client sees what ours writes; with the reason if it reaches no server at all."""
        marker = target.store.keys.reply(f"server-{self._calls.port.fresh_id().hex()}")
        await _send(self._calls, marker, ("SET", marker, 1, "PX", _MARKER_MS))
        try:
            # It writes, too: a replica would answer for a server that is another one by now.
            seen = await _send(there, marker, ("SET", marker, 1, "XX", "PX", _SEEN_MS), _LOOK_SECONDS)
        except Exception as error:
            if not (isinstance(error, RetryBudgetExhaustedError) or there.port.is_transient(error)):
                raise
            return False, error
        return seen is not None, None

    async def complete(
        self, claim: Claim, targets: Sequence[Target], cancellations: list[BaseException]
    ) -> tuple[list[Published], str | None]:
        """One script: everything, or an error and nothing. What went where, and what trimming complained about."""
        queue, keys, keep = self._queue, self._queue.store.keys, self._queue.completed
        leased = int(queue.store.options.message_visibility_timeout_seconds is not None)
        note = Note("completed", None, queue.port.now() - claim.claimed_at)
        if not targets:  # an ack, which a server without memory takes, too
            settled = await queue.store.settler.settle([claim], keep, note, cancellations)
            if not settled.held[0]:
                raise self._lost(claim)
            return [], settled.trim_error
        slot = self._calls.borrow()
        try:
            home = (keys.processing, keys.leases, keys.deliveries, keys.pending, keys.tenants)
            markers: dict[str, int] = {}
            details = [part for target in targets for part in target.arguments(markers)]
            open_keys = (
                *(*home, keys.journal, keys.meta, slot.key, keys.completed, keys.records("completed")),
                *(key for target in targets for key in target.keys),
                *markers,
            )
            arguments = (
                *(int(self._calls.keep_seconds * 1000), leased, keys.line(""), keys.returned("")),
                *(-1 if keep is None else keep.limit or 0, note.as_json()),
                *(slot.next_call(), claim.token, *details),
            )
            try:
                reply = await self._calls.call_to_the_end(_HAND_OFF, arguments, open_keys, cancellations)
            except StateMissingError:
                await self._write_state(targets)
                reply = await self._calls.call_to_the_end(_HAND_OFF, arguments, open_keys, cancellations)
        finally:
            self._calls.give_back(slot)
        return self._read(reply, claim, targets)

    @staticmethod
    async def _write_state(targets: Sequence[Target]) -> None:
        """One of the other queues is new to Redis, or forgotten."""
        for target in targets:
            assert target.queue.store.calls is not None
            await target.queue.store.calls.write_state()

    def _lost(self, claim: Claim) -> LeaseLostError:
        return LeaseLostError(
            "the lease of this message was lost; nothing was acknowledged or published",
            queue=self._queue.options.name,
            message_id=claim.message_id,
            operation="complete",
        )

    def _read(self, reply: bytes, claim: Claim, targets: Sequence[Target]) -> tuple[list[Published], str | None]:
        where = {"queue": self._queue.options.name, "message_id": claim.message_id, "operation": "complete"}
        if reply == b"0":
            raise self._lost(claim)
        if reply[:1] == b"-":
            full = targets[int(reply[1:]) - 1].queue.options.name
            raise QueueBackpressureError(
                f"the queue {full!r} is full; nothing was published, and the message is still in hand", **where
            )
        messages = sum(len(target.messages) for target in targets)
        marks, rest, results = reply[1 : 1 + messages], reply[1 + messages :], []
        for target in targets:
            count, dropped = len(target.messages), envelope.ID_BYTES * int.from_bytes(rest[:2], "big")
            accepted = [mark == 49 for mark in marks[:count]]
            results.append(Published(accepted, dropped_ids(rest[2 : 2 + dropped])))
            marks, rest = marks[count:], rest[2 + dropped :]
        return results, rest.decode("utf-8", "replace") or None


async def _send(calls: Calls, key: str, command: tuple[Argument, ...], budget: float | None = None) -> Any:
    """A command that may be sent more than once; its answer."""

    async def send() -> Any:
        (answer,) = await calls.port.converse(key, (command,))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return await calls.retry(send, "complete", budget)


def _listed(publish: Any) -> list[Any]:
    if isinstance(publish, str | bytes | Mapping) or not isinstance(publish, Iterable):
        raise ConfigurationTypeError(f"publish must be a list of pairs (queue, message), not {type(publish).__name__}")
    return list(publish)


def _opened(one: Any) -> tuple[QueueProtocol, Any, dict[str, Any]]:
    if not isinstance(one, tuple | list) or len(one) not in (2, 3):
        raise ConfigurationTypeError(
            f"publish must hold pairs (queue, message) or triples (queue, message, options), not {type(one).__name__}"
        )
    queue, message, *rest = one
    protocol = getattr(queue, "_protocol", None)
    if protocol is None or not hasattr(protocol, "outbox"):
        raise ConfigurationTypeError(f"publish must name RedisMessageQueue objects, not {type(queue).__name__}")
    if rest and not isinstance(rest[0], Mapping):
        raise ConfigurationTypeError(f"options of publish here are a dict, not {type(rest[0]).__name__}")
    details = dict(rest[0]) if rest else {}
    tenant = getattr(queue, "_tenant", None)  # of what `queue.tenant(...)` gives
    if tenant is not None:
        details = {"tenant": tenant, **details}
    unknown = details.keys() - {"tenant", "delay_seconds", "at"}
    if unknown:
        raise ConfigurationError(f"options of publish here are tenant, delay_seconds and at, not {sorted(unknown)}")
    return protocol, message, details
