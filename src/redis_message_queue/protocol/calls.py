"""Every call has a number: it can be sent as often as need be, and counts once."""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from redis_message_queue.errors import RetryBudgetExhaustedError
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.port import Argument, AttemptEnd, Command, Port, StateMissingError
from redis_message_queue.protocol.retry import RetryPlan
from redis_message_queue.scripts import script

T = TypeVar("T")

log = logging.getLogger("redis_message_queue")

STATE_VERSION = 1  # of everything that is stored; lua/lib/journal.lua compares it
_MISSED_STATES = 2  # so often a call writes the state of its queue before it gives up
_DAY_MS = 86_400_000
_UNREAD = 10  # so many times its length a journal keeps of what an archive has not read
_NAP_SECONDS = 0.5  # nobody who should stop sleeps longer than this
_FIRST_CONTACT_SECONDS = 5.0  # a server that was never reached is not waited for any longer
_SHORTEST_MEETING_SECONDS = 0.25  # so that the last attempt has an error of its own to tell
_LISTENING_SECONDS = 5.0  # how long one answer is waited for, where the port does not say


class Slot:
    """One entry of the reply cache: a key in Redis and the number of its last call."""

    __slots__ = ("claim", "enqueue", "give_back", "holder", "key", "number", "process", "publish", "put_off", "settle")

    def __init__(self, holder: bytes, process: int, keys: QueueKeys, options: GatewayOptions, keep_ms: int) -> None:
        self.holder = holder
        self.key = key = keys.reply(base64.urlsafe_b64encode(holder).decode())
        self.process = process
        self.number = 0
        lease_us = int((options.message_visibility_timeout_seconds or 0) * 1_000_000)
        lines = (keys.line(""), keys.returned(""))
        special = {"reply": key, "dlq": keys.dead_letter, "records": keys.records("dlq")}

        def command(verb: str, *settings: Argument, optional: int = 0) -> Command:
            """Keys by the names in the script's header; those at its end that a call brings itself are left out."""
            wanted = script(verb).keys
            names = wanted[: len(wanted) - optional]
            return Command(script(verb), tuple(special.get(name) or getattr(keys, name) for name in names), settings)

        self.publish = command("publish", keep_ms, optional=1)
        self.enqueue = command("enqueue", keep_ms, *lines, *publishing_rules(options), optional=1)
        self.claim = command(
            "claim",
            keep_ms,
            # Without leases nothing brings a message back but the repetition of its claim: that is kept for a day.
            keep_ms if lease_us else _DAY_MS,
            holder,
            lease_us,
            options.max_delivery_count or 0,
            options.max_dead_letter_length or 0,
            int((options.message_ttl_seconds or 0) * 1_000_000),
            *lines,
        )
        leased = int(lease_us > 0)
        self.settle = command("settle", keep_ms, leased, *lines, optional=2)
        self.give_back = command("give_back", keep_ms, leased, *lines)
        self.put_off = command("put_off", keep_ms, leased, *lines)

    def next_call(self) -> bytes:
        """The number of a new call, as text that compares like a number."""
        self.number += 1
        return b"%012d" % self.number

    def nonce_of(self, call: bytes) -> bytes:
        """What the leases of this call have that no others have; see lua/lib/nonce.lua."""
        return self.holder + int(call).to_bytes(5, "big")


def publishing_rules(options: GatewayOptions) -> tuple[Argument, ...]:
    """What the script needs to know of the rules for publishing."""
    window_ms = max(1, int(options.message_deduplication_log_ttl_seconds * 1000))
    overload = "drop" if options.pending_overload_policy == "drop_oldest" else "refuse"
    return (window_ms, options.max_pending_length or 0, options.max_pending_per_tenant or 0, overload)


@dataclass(slots=True, eq=False)
class Attempt:
    """One consumer's way to a message. Unsure from before a claim is sent until a handler has its message."""

    slot: Slot
    call: bytes = b""  # the number of its last claim
    unsure: bool = False
    abandoned: bool = False
    asker: object | None = None  # who is about to find out what it took
    resting: Callable[[bool], None] | None = None  # hears when the attempt only waits, and when no longer
    patient: bool = False  # whether it may use the whole retry budget, because its caller set no time limit


class Calls:
    """The callers of one queue object, and the patience that each of their calls is given."""

    def __init__(self, port: Port, keys: QueueKeys, options: GatewayOptions) -> None:
        self.port = port
        self.keys = keys
        self.options = options
        self.plan = RetryPlan(
            options.retry_budget_seconds, options.retry_initial_delay_seconds, options.retry_max_delay_seconds
        )
        # An answer must outlive every repetition of its call: ours, the client's own, and a minute more.
        self.keep_seconds = options.retry_budget_seconds + port.retry_window + 60
        self._keep_ms = int(self.keep_seconds * 1000)
        self.listening_seconds = port.socket_timeout or _LISTENING_SECONDS  # how long one attempt takes, at the most
        self.met = self.plan.budget_seconds == 0  # whether Redis was ever reached, where failures are repeated
        self._journal_written = not options.journal
        self._weights_written = not options.tenant_weights
        self._has_called = False  # whether a call was answered before
        # The process, and the slots that are free in it: replaced together, so that no thread sees half of it.
        self._free: tuple[int, deque[Slot]] = (0, deque())
        self._handed_over: deque[Attempt] = deque()

    async def open_journal(self, limit: float | None = None) -> None:
        """See to it that the queue has its journal, before anything happens that belongs there."""
        if not self._journal_written:
            await self._write_state(limit)

    async def write_state(self, limit: float | None = None) -> None:
        """Write what a script has missed: at first contact, or because somebody has flushed the server."""
        if self._has_called:
            log.warning(
                "the state of %s is gone from Redis, which was flushed or restored; its version, journal and weights "
                "are written again",
                self.keys.prefix,
            )
        self._weights_written = not self.options.tenant_weights
        await self._write_state(limit)

    async def _write_state(self, limit: float | None = None) -> None:
        meta = self.keys.meta
        commands: list[tuple[Argument, ...]] = [
            ("HSETNX", meta, "version", STATE_VERSION),
            ("HSETNX", meta, "partitions", 1),
        ]
        if self.options.journal:
            soft, payload = self.options.max_journal_length, int(self.options.journal == "payload")
            limits = ("journal_soft", soft, "journal_hard", _UNREAD * soft)
            # Numbers of entries begin anew after a flush: the identity tells one journal from the next.
            commands.append(("HSETNX", meta, "journal_identity", self.port.fresh_id().hex()))
            commands.append(("HSET", meta, "journal", payload, *limits))
        await self.converse(self.keys.pending, tuple(commands), "open the queue", limit)
        self._journal_written = True

    async def write_weights(self, limit: float | None = None) -> None:
        """Say how many turns tenants have, before this object takes its first one."""
        if self._weights_written:
            return
        key = self.keys.weights
        weights = (self.options.tenant_weights or {}).items()
        await self.converse(
            key,
            tuple(("HSET", key, name, weight) if weight > 1 else ("HDEL", key, name) for name, weight in weights),
            "write weights",
            limit,
        )
        self._weights_written = True

    def borrow(self) -> Slot:
        """A slot that nobody else uses until it is given back."""
        if self._handed_over:
            self._collect()
        here = self.port.process()
        process, free = self._free
        if process != here:
            if self.port.born_in != here:
                self.port.inherit()
            # A forked child must not share numbers with its parent: it starts with no slots at all.
            free = deque()
            self._free = (here, free)
        try:
            slot = free.pop()
            self._has_called = True
            return slot
        except IndexError:
            return self._new_slot(here)

    def give_back(self, slot: Slot) -> None:
        """The slot's last call is over."""
        process, free = self._free
        if slot.process == process:  # in a child that has borrowed none yet, `borrow` throws it away
            free.append(slot)

    def give_back_when_sure(self, attempt: Attempt) -> None:
        """The slot is free as soon as nothing about its claim is in doubt."""
        self._handed_over.append(attempt)

    def _collect(self) -> None:
        """Take back the slots of claims whose handlers have their messages by now."""
        while True:
            try:
                attempt = self._handed_over.popleft()
            except IndexError:
                return
            if attempt.abandoned:
                continue
            if attempt.unsure:
                self._handed_over.append(attempt)
                return
            self.give_back(attempt.slot)

    def owns(self, slot: Slot) -> bool:
        """Whether the slot is this process's: after a fork the parent goes on using its own."""
        return slot.process == self.port.process()

    def _new_slot(self, process: int) -> Slot:
        # Each has a name of its own, not a count: two threads that make one at the same time must not share it.
        return Slot(self.port.slot_name(), process, self.keys, self.options, self._keep_ms)

    async def meet(self, started: float) -> None:
        """Connect for the first time. What fails here has sent nothing, and is given a few seconds only."""
        end = started + min(_FIRST_CONTACT_SECONDS, self.plan.budget_seconds)
        await self.until(max(end, self.port.now() + _SHORTEST_MEETING_SECONDS), self.port.meet)
        self.met = True

    async def call(
        self,
        command: Command,
        arguments: tuple[Argument, ...],
        *,
        open_keys: tuple[str, ...] = (),
        budget: float | None = None,
        stopped: Callable[[], bool] | None = None,
        started: float | None = None,
    ) -> Any:
        """Run a numbered script until its answer arrives, within the retry budget, or until somebody stops us.

        The budget counts from ``started``, if this is not the first that is heard of the call.
        """
        if started is None:
            started = self.port.now()
        attempt = missed = 0
        while True:
            try:
                if not self.met:
                    await self.meet(started)
                return await self.port.call(command, open_keys, arguments)
            except StateMissingError:
                missed += 1
                if missed > _MISSED_STATES:  # it is the state of a queue that results are handed to
                    raise
                await self.write_state()
            except Exception as error:
                attempt += 1
                await self.rest_before_retry(error, command.script.name, attempt, started, budget, stopped)
                if stopped is not None and stopped():
                    raise

    async def call_to_the_end(
        self,
        command: Command,
        arguments: tuple[Argument, ...],
        open_keys: tuple[str, ...],
        cancellations: list[BaseException] | None,
        budget: float | None = None,
    ) -> Any:
        """The same until it is answered: a cancellation cuts the call short, so it is sent again under its number.

        That is what the numbers are for, and it costs nothing where nobody cancels, unlike a task of its own for
        each call. However often it is cancelled, all attempts together have one retry budget, and at least the time
        of one answer. Without a budget there is one attempt, and it has the task: whether it fails must be known.
        """
        if cancellations is not None and self.plan.budget_seconds == 0:
            return await self.port.shielded(cancellations, self.call(command, arguments, open_keys=open_keys))
        started = self.port.now()
        while True:
            try:
                return await self.call(command, arguments, open_keys=open_keys, budget=budget, started=started)
            except BaseException as error:
                if cancellations is None or not self.port.is_cancellation(error):
                    raise
                cancellations.append(error)
                patience = max(self.plan.budget_seconds, self.listening_seconds)
                if self.port.now() - started >= patience:
                    raise self.exhausted(error, command.script.name, len(cancellations), started) from None

    async def retry(
        self,
        send: Callable[[], Awaitable[T]],
        operation: str,
        budget: float | None = None,
        limit: float | None = None,
    ) -> T:
        """The same patience for anything else that may be sent more than once; after ``limit`` there is none."""
        started = self.port.now()
        if limit is not None:
            budget = max(0.0, limit - started)
        attempt = 0
        while True:
            try:
                if not self.met:
                    await self.meet(started)
                return await self.until(limit, send)
            except Exception as error:
                attempt += 1
                await self.rest_before_retry(error, operation, attempt, started, budget)

    @staticmethod
    async def until(limit: float | None, send: Callable[[], Awaitable[T]]) -> T:
        """Make one attempt that is over at the limit, whatever the client would allow."""
        if limit is None:
            return await send()
        with AttemptEnd(limit):
            return await send()

    async def converse(
        self, key: str, commands: tuple[tuple[Argument, ...], ...], operation: str, limit: float | None = None
    ) -> list[Any]:
        """Plain commands that may be sent more than once; what refuses one of them may be over a moment later."""

        async def send() -> list[Any]:
            answers = await self.port.converse(key, commands)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

        return await self.retry(send, operation, limit=limit)

    async def rest_before_retry(
        self,
        error: Exception,
        operation: str,
        attempt: int,
        started: float,
        budget: float | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> None:
        """Sleep until the next attempt or until somebody stops us, or raise because there is none."""
        if not self.port.is_transient(error) or self.plan.budget_seconds == 0:
            raise error
        if not self.met:
            budget = min(_FIRST_CONTACT_SECONDS, _FIRST_CONTACT_SECONDS if budget is None else budget)
        pause = self.plan.pause(attempt, self.port.now() - started, self.port.chance(), budget)
        if pause is None:
            raise self.exhausted(error, operation, attempt, started) from error
        log.warning(
            "%s: %s failed (%s, redis at %s), retrying in %.3g s (attempt %d)",
            self.keys.prefix,
            operation,
            type(error).__name__,
            self.port.address,
            pause,
            attempt,
        )
        if stopped is None:
            await self.port.sleep(pause)
            return
        awake_at = self.port.now() + pause
        while pause > 0 and not stopped():
            await self.port.sleep(min(pause, _NAP_SECONDS))
            pause = awake_at - self.port.now()

    def exhausted(
        self, error: BaseException, operation: str, attempts: int, started: float
    ) -> RetryBudgetExhaustedError:
        """What to raise when there is no further attempt."""
        where, seconds = f"redis at {self.port.address}", self.port.now() - started
        tried = f"{attempts} attempt{'s' if attempts != 1 else ''}"
        if not self.met:
            return RetryBudgetExhaustedError(
                f"{where} could not be reached in {seconds:.1f} s and {tried} ({type(error).__name__}: {error}); "
                f"nothing was sent. Check the address, and that the server runs and can be reached from here",
                operation=operation,
            )
        return RetryBudgetExhaustedError(
            f"{operation} got no answer from {where} in {seconds:.1f} s and {tried} "
            f"(last: {type(error).__name__}); its outcome is unknown, and it is safe to call again later "
            "where deduplication or a lease covers it",
            operation=operation,
        )
