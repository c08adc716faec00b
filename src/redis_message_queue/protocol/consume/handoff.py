"""Acknowledges a message together with the messages that it led to, in one step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.calls import MISSED_STATES, Calls, publishing_rules
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.settle import SettleReason
from redis_message_queue.protocol.port import Argument, Command, StateMissingError
from redis_message_queue.protocol.publish.confirm import dropped_ids
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.publish.sender import OutgoingMessage, Published, chunk_ids
from redis_message_queue.stored import envelope
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.keys import hash_tag_of, script_keys
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    LeaseLostError,
    QueueBackpressureError,
    RedisMessageQueueError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.values.plain_values import class_name

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_TARGET_KEYS = (
    *("pending", "wakeup", "deliveries", "leases", "tenant_ring", "tenant_backlog", "weights"),
    *("delayed", "delayed_messages", "journal", "meta", "longest"),
)
_PROBE_MS = 60_000  # how long the key lasts that shows whether two clients reach one server
_SEEN_MS = 5_000  # how long it lasts once it was found
_PROBE_SECONDS = 1.0  # our own client has just reached its server, so the other one should answer quickly


class HandOffTarget:
    """A queue that gets results, with these results."""

    def __init__(self, queue: QueueProtocol, new_id: bytes) -> None:
        self.queue = queue
        self.messages: list[OutgoingMessage] = []
        self._new_id = new_id

    @property
    def ids(self) -> list[bytes]:
        return chunk_ids(self._new_id, len(self.messages))

    @property
    def keys(self) -> tuple[str, ...]:
        return script_keys(self.queue.store.keys, _TARGET_KEYS)

    def arguments(self, markers: dict[str, int]) -> list[Argument]:
        """Return what the script reads; it knows a marker by its place among those of all targets."""
        store = self.queue.store
        base = self._new_id[: envelope.BASE_BYTES]
        prefixes = (store.keys.tenant_pending(""), store.keys.expired(""))
        rules = (*publishing_rules(store.options), base, store.calls.version_field)
        parts: list[Argument] = [*prefixes, *rules, len(self.messages)]
        for one in self.messages:
            place = 0 if one.marker is None else markers.setdefault(one.marker, len(markers) + 1)
            parts += [one.due, place, envelope.body(one.payload, one.tenant, one.extras, one.ttl_us)]
        return parts


class HandOff:
    """Hands off a message of one part of a queue."""

    def __init__(self, queue: QueueProtocol, claim: Claim) -> None:
        queue.store.capabilities.require("hand_off")
        self._queue = queue
        self._calls = (claim.part or queue.store.parts[0]).calls
        self._command = Command(self._calls.script("hand_off"), ())

    async def targets(self, publish: Sequence[Any]) -> list[HandOffTarget]:
        """Return the results by queue, checked as `publish` would check each of them."""
        targets: dict[str, HandOffTarget] = {}
        results = _listed(publish)
        if len(results) > MAX_MESSAGES:
            raise ConfigurationError(f"publish holds {len(results)} messages; one step takes at most {MAX_MESSAGES:,}")
        for one in results:
            queue, message, details = _unpack(one)
            try:
                await self._refuse_elsewhere(queue)
                queue.gate.refuse_if_shut()
                await queue.store.calls.prepare()
                outgoing = await queue.builder.build(message, PublishOverrides(**details))
                outgoing.mark(queue.store.keys)
            except RedisMessageQueueError as error:
                error.locate(queue.options.name, "complete")
                raise
            key = queue.store.keys.pending  # two objects of one queue share its limits and markers
            target = targets.get(key)
            if target is None:
                target = targets[key] = HandOffTarget(queue, queue.port.new_id())
            target.messages.append(outgoing)
        return list(targets.values())

    async def _refuse_elsewhere(self, target: QueueProtocol) -> None:
        """Raise for a target that one script cannot reach: it runs on one node of one server."""
        target.store.capabilities.require("hand_off_target")
        if len(target.store.parts) > 1:
            raise ConfigurationError(
                "a queue with partitions cannot be a target of complete(): one script reaches one partition only; hand "
                "off to queue.partition(number), to a queue without partitions, or publish() before the handler returns"
            )
        if target.message_class is not self._queue.message_class:
            raise ConfigurationTypeError(
                f"the queues {self._queue.options.name!r} and {target.options.name!r} are not both sync or both async; "
                "hand off to a queue of the same package"
            )
        here, there = self._calls.keys.pending, target.store.keys.pending
        if self._calls.port.is_cluster and (hash_tag_of(here) is None or hash_tag_of(here) != hash_tag_of(there)):
            raise ConfigurationError(
                f"on a cluster a hand-off needs queues that share a hash tag; name them for example "
                f"'{{orders}}{self._queue.options.name}' and '{{orders}}{target.options.name}'"
            )
        await self._refuse_other_server(target, target.store.calls)

    async def _refuse_other_server(self, target: QueueProtocol, there: Calls) -> None:
        """Raise unless the target's client finds a key that ours has just written."""
        here = self._calls
        known, trouble = here.port.reaches_the_same(there.port), None
        if known is None:
            known, trouble = await self._probe(target, there)
            if not known:  # an open connection may lead to a server that is no primary any more
                await here.port.close_idle()
                await there.port.close_idle()
                known, trouble = await self._probe(target, there)
            if known:
                here.port.note_the_same(there.port)
        if not known:
            why = "" if trouble is None else f", or cannot be reached ({class_name(trouble)})"
            raise ConfigurationError(
                f"the queue {target.options.name!r} is on another server or in another database{why}; a hand-off "
                "needs both queues in the same place, best with the same client. Nothing was published, and you "
                "still have the message"
            ) from trouble

    async def _probe(self, target: QueueProtocol, there: Calls) -> tuple[bool, Exception | None]:
        """Return whether the target's client sees what ours writes, and the error if it reaches no server at all."""
        key = target.store.keys.reply(f"server-{self._calls.port.new_id().hex()}")
        await _send(self._calls, key, ("SET", key, 1, "PX", _PROBE_MS))
        try:
            # A write, not a read: a replica may answer a read although it belongs to another server by now.
            seen = await _send(there, key, ("SET", key, 1, "XX", "PX", _SEEN_MS), _PROBE_SECONDS)
        except Exception as error:
            if not (isinstance(error, RetryBudgetExhaustedError) or there.port.is_transient(error)):
                raise
            return False, error
        return seen is not None, None

    async def complete(
        self,
        claim: Claim,
        targets: Sequence[HandOffTarget],
        cancellations: list[BaseException],
        handled: Sequence[int] = (),
    ) -> tuple[list[Published], str | None]:
        """Run the script: all of it happens, or an error is raised and nothing has happened.

        Returns what each target accepted, and the error of trimming the completed list.
        """
        queue, keys, terminal_list = self._queue, self._calls.keys, self._queue.completed
        leased = int(queue.store.options.message_visibility_timeout_seconds is not None)
        reason = SettleReason("completed", None, queue.port.now() - claim.claimed_at, handled=handled)
        if not targets:  # a plain ack, which works on a server without free memory, too
            settled = await queue.store.settler.settle([claim], terminal_list, reason, cancellations)
            if not settled.owned[0]:
                raise self._lost(claim)
            return [], settled.trim_error
        slot = self._calls.acquire_slot()
        try:
            home = (keys.processing, keys.leases, keys.deliveries, keys.pending, keys.wakeup, keys.tenant_ring)
            markers: dict[str, int] = {}
            details = [part for target in targets for part in target.arguments(markers)]
            extra_keys = (
                *(
                    *home,
                    keys.tenant_in_flight,
                    keys.journal,
                    keys.meta,
                    slot.key,
                    keys.completed,
                    keys.records("completed"),
                ),
                *(key for target in targets for key in target.keys),
                *markers,
            )
            arguments = (
                *(int(self._calls.keep_seconds * 1000), leased, keys.tenant_pending(""), keys.expired("")),
                *(-1 if terminal_list is None else terminal_list.limit or 0, reason.as_json()),
                *(slot.next_call(), claim.token, *details),
            )
            send = partial(
                self._calls.call, self._command, arguments, extra_keys=extra_keys, cancellations=cancellations
            )
            reply = await self._send_with_state(send, targets)
        finally:
            self._calls.release_slot(slot)
        return self._read(reply, claim, targets)

    @staticmethod
    async def _send_with_state(send: Callable[[], Awaitable[bytes]], targets: Sequence[HandOffTarget]) -> bytes:
        """Write the state of the other queues if Redis does not have it: one of them is new, or Redis has lost it."""
        for _ in range(MISSED_STATES):
            with suppress(StateMissingError):
                return await send()
            for target in targets:
                await target.queue.store.calls.write_state()
        return await send()

    def _lost(self, claim: Claim) -> LeaseLostError:
        return LeaseLostError(
            "the lease of this message was lost; nothing was acknowledged or published",
            queue=self._queue.options.name,
            message_id=claim.message_id,
            operation="complete",
        )

    def _read(self, reply: bytes, claim: Claim, targets: Sequence[HandOffTarget]) -> tuple[list[Published], str | None]:
        where = {"queue": self._queue.options.name, "message_id": claim.message_id, "operation": "complete"}
        if reply == b"0":
            raise self._lost(claim)
        if reply[:1] == b"-":
            full = targets[int(reply[1:]) - 1].queue.options.name
            raise QueueBackpressureError(
                f"the queue {full!r} is full; nothing was published, and you still have the message", **where
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
    """Return the reply to a command that may be sent more than once."""

    async def send() -> Any:
        (answer,) = await calls.port.pipeline(key, (command,))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return await calls.retry(send, "complete", budget)


def _listed(publish: Any) -> list[Any]:
    if isinstance(publish, str | bytes | Mapping) or not isinstance(publish, Iterable):
        raise ConfigurationTypeError(f"publish must be a list of pairs (queue, message), not {type(publish).__name__}")
    return list(publish)


def _unpack(one: Any) -> tuple[QueueProtocol, Any, dict[str, Any]]:
    if not isinstance(one, tuple | list) or len(one) not in (2, 3):
        raise ConfigurationTypeError(
            f"publish must hold pairs (queue, message) or triples (queue, message, options), not {type(one).__name__}"
        )
    queue, message, *rest = one
    protocol = getattr(queue, "_protocol", None)
    if protocol is None or not hasattr(protocol, "publisher"):
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
