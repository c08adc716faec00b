"""Numbered calls: each can be sent as often as needed, and takes effect once."""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.consume.claim_attempt import HANDED_OVER, OFFERED, ClaimAttempt
from redis_message_queue.protocol.outage import Outage
from redis_message_queue.protocol.port import Argument, AttemptEnd, Call, Command, Port, StateMissingError
from redis_message_queue.protocol.retry import RetryPlan
from redis_message_queue.protocol.shared_state import STATE_VERSION, decides_alone, follow_first
from redis_message_queue.stored.keys import REGISTRY_KEY, QueueKeys, script_keys
from redis_message_queue.stored.scripts import Script, script, version_field
from redis_message_queue.values.errors import PartitionCountError, RetryBudgetExhaustedError
from redis_message_queue.values.plain_values import described

T = TypeVar("T")

log = logging.getLogger("redis_message_queue")

MISSED_STATES = 2  # how often a call writes the state of its queue before it gives up
_DAY_MS = 86_400_000
_UNREAD = 10  # how many times its length a journal may have, while an archive has not read it
_WEIGHTS_A_SCRIPT = 2_000  # tenants and their weights, so half as many tenants
# What a full server refuses before anything is written.
_BRINGING_IN = {"publish", "enqueue", "backfill", "redrive", "hand_off", "tick", "schedule", "restore", "append"}
_NAP_SECONDS = 0.5  # the longest sleep between two looks at a stop signal
_FIRST_CONTACT_SECONDS = 5.0  # how long a server that was never reached is waited for
SHORTEST_ATTEMPT_SECONDS = 0.25  # so that the last attempt still gets an answer or an error of its own
_LISTENING_SECONDS = 5.0  # how long to wait for one reply, if the port has no timeout
FEWEST_ATTEMPTS = 4  # of a call that must not wait: a connection may have been closed, and a reply may be lost
_PROBE_SECONDS = 1.0  # how long to wait for the reply to a probe
# How long a loop waits for one node of a cluster while it could serve others; less while another node is away, which
# may have this part, too. A node that answers slowly gets more.
_PATIENCE_SECONDS, _LITTLE_PATIENCE_SECONDS = 0.5, 0.15
_SLOWER = 4  # times what the last answer took
_STEPS_ASIDE = object()


class LoopCancellations(list[BaseException]):
    """Notes the cancellations of a loop's settlements, which step aside to be retried beside the loop.

    They are retried until ``ends_at()`` at the latest, the time limit of a drain.
    """

    __slots__ = ("ends_at",)

    def __init__(self, ends_at: Callable[[], float]) -> None:
        super().__init__()
        self.ends_at = ends_at


class _StepAside:
    """Suspends a settlement. Whoever runs it goes on, and continues it later, perhaps in another thread."""

    def __await__(self) -> Generator[object, None, None]:
        yield _STEPS_ASIDE


class UntilItStepsAside:
    """Runs a settlement to its end, or until it steps aside. Returns whether that was its end."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, bool]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration:
                return True
            if awaited is _STEPS_ASIDE:
                return False
            try:
                step = partial(self._work.send, (yield awaited))
            except BaseException as error:
                step = partial(self._work.throw, error)


class ReplySlot:
    """One entry of the reply cache: a key in Redis and the number of its last call."""

    __slots__ = (
        "ack_and_take",
        "ack_one",
        "claim",
        "enqueue",
        "holder",
        "key",
        "number",
        "prefix",
        "process",
        "publish",
        "requeue",
        "retry_later",
        "settle",
        "take",
    )

    def __init__(self, holder: bytes, process: int, keys: QueueKeys, options: GatewayOptions, keep_ms: int) -> None:
        self.holder = holder
        self.key = key = keys.reply(base64.urlsafe_b64encode(holder).decode())
        self.prefix = keys.prefix
        self.process = process
        self.number = 0
        field = _version_field(options)
        lease_us = int((options.message_visibility_timeout_seconds or 0) * 1_000_000)
        prefixes = (keys.tenant_pending(""), keys.expired(""))

        def command(verb: str, *settings: Argument, **given: str) -> Command:
            one = script(verb, field)
            return Command(one, script_keys(keys, one.keys, reply=key, **given), settings)

        self.publish = command("publish", keep_ms)
        self.enqueue = command("enqueue", keep_ms, *prefixes, *publishing_rules(options))
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
            1 if options.ordered_tenants else options.max_in_flight_per_tenant or 0,
            *prefixes,
            records=keys.records("dlq"),
        )
        self.take = command("take", keep_ms, lease_us)
        self.ack_one = command("ack_one", keep_ms)
        self.ack_and_take = command("ack_and_take", keep_ms, lease_us)
        leased = int(lease_us > 0)
        self.settle = command("settle", keep_ms, leased, *prefixes)
        self.requeue = command("requeue", keep_ms, leased, *prefixes)
        self.retry_later = command("retry_later", keep_ms, leased, *prefixes, int(options.ordered_tenants))

    def next_call(self) -> bytes:
        """The number of a new call, as text that compares like a number."""
        self.number += 1
        return b"%012d" % self.number

    def nonce_of(self, call: bytes) -> bytes:
        """Return the bytes that make the tokens of this call unique; see lua/claim.lua."""
        return self.holder + int(call).to_bytes(5, "big")


def publishing_rules(options: GatewayOptions) -> tuple[Argument, ...]:
    """Return the rules for publishing, as arguments of a script."""
    window_ms = max(1, int(options.message_deduplication_log_ttl_seconds * 1000))
    overload = "drop" if options.pending_overload_policy == "drop_oldest" else "refuse"
    return (window_ms, options.max_pending_length or 0, options.max_pending_per_tenant or 0, overload)


def _version_field(options: GatewayOptions) -> str:
    return version_field(journal=bool(options.journal), weights=bool(options.tenant_weights))


def never_stop() -> bool:
    """Return False: nothing stops this call but its own end."""
    return False


class Calls:
    """The calls to one part of a queue: their slots, and how long each of them is retried.

    The state of a part is written only if the queue has as many ``partitions`` as this client says, which the
    ``first`` of them knows.
    """

    def __init__(
        self, port: Port, keys: QueueKeys, options: GatewayOptions, partitions: int = 1, first: Calls | None = None
    ) -> None:
        self.port = port
        self.keys = keys
        self.options = options
        self.partitions = partitions
        self._first = first  # None in the first part itself
        self._all: list[Calls] = [] if first is None else first._all  # of all parts
        self._all.append(self)
        self._answer_seconds = 0.0  # what the last answer to a claim took
        self._has_opened = False  # whether it took longer, because the part was opened meanwhile
        self.plan = RetryPlan(
            options.retry_budget_seconds, options.retry_initial_delay_seconds, options.retry_max_delay_seconds
        )
        # A stored reply must outlive every retry of its call, ours and the client's own, by a minute.
        self.keep_seconds = options.retry_budget_seconds + port.retry_window + 60
        self._keep_ms = int(self.keep_seconds * 1000)
        self.listening_seconds = port.socket_timeout or _LISTENING_SECONDS  # how long one attempt takes, at the most
        self.has_connected = (
            self.plan.budget_seconds == 0
        )  # whether Redis was ever reached; without retries it does not matter
        self.version_field = _version_field(options)
        counted = {"counted": keys.counted} if partitions > 1 else {}
        self._open = Command(script("open_queue"), script_keys(keys, script("open_queue").keys, **counted))
        # Whether the journal and the weights of these options, if any, have been written.
        self.is_prepared = not (options.journal or options.tenant_weights)
        self._has_called = False  # whether a call was answered before
        # The process, and the slots that are free in it: replaced together, so that no thread sees half of it.
        self._free: tuple[int, deque[ReplySlot]] = (0, deque())
        self._offered: deque[ClaimAttempt] = deque()
        # Parts on nodes of their own have outages of their own.
        self._outage: Outage = Outage() if first is None or port.is_cluster else first._outage
        self._has_retried = False  # since the last answer
        self.away: Exception | None = None  # why the last call here had no answer
        self.away_since = 0.0
        self.watchers = 0  # how many background tasks find out when it answers again

    @property
    def patience(self) -> float | None:
        """How long a loop waits for an answer while other parts could answer; None if none could."""
        if self.partitions == 1 or not self.port.is_cluster:  # one server has all parts
            return None
        is_one_away = any(one.away is not None for one in self._all if one is not self)
        patience = _LITTLE_PATIENCE_SECONDS if is_one_away else _PATIENCE_SECONDS
        return min(self.listening_seconds, max(patience, _SLOWER * self._answer_seconds))

    def has_failed(self, error: Exception) -> None:
        """Note that Redis did not answer."""
        if self.away is None:
            self.away_since = self.port.now()
        self.away = error

    def has_answered(self, seconds: float = 0.0) -> None:
        """Note that Redis has answered, after this long."""
        self.away = None
        if self._has_retried:
            self._say_that_it_is_back()
        if seconds:
            self._answer_seconds = 0.0 if self._has_opened else seconds
            self._has_opened = False

    def _say_that_it_is_back(self) -> None:
        self._has_retried = False
        if (ended := self._outage.end(self.port.now())) is not None:
            seconds, attempts = ended
            log.warning(
                "%s: redis at %s answers again, after %.1f s and %d failed attempt%s",
                *(self.keys.prefix, self.port.address, seconds, attempts, "" if attempts == 1 else "s"),
                extra={"queue": self.keys.prefix, "address": self.port.address},
            )

    async def probe(self) -> bool:
        """Ask whether Redis answers again. Any answer will do, also that this user may not ask."""
        started = self.port.now()
        send = partial(self.port.pipeline, self.keys.meta, (("PING",),))
        try:
            (answer,) = await self.until(started + _PROBE_SECONDS, send)
        except Exception as error:
            answer = error
        if isinstance(answer, Exception) and self.port.is_transient(answer):
            return False
        self.has_answered(self.port.now() - started)
        return True

    def script(self, name: str) -> Script:
        """The script with this name, as a client with these options sends it."""
        return script(name, self.version_field)

    async def prepare(self, limit: float | None = None, *, drains: bool = False) -> None:
        """Write the rules of the journal and the weights of tenants before the first call, if the options have any."""
        if not self.is_prepared:
            await self._write_state(limit or self._end_of_retries(self.port.now()), drains)

    def _end_of_retries(self, started: float) -> float | None:
        """When the last attempt must be over if writing the state has the retry budget of its call."""
        seconds = self.plan.budget_seconds
        return None if seconds == 0 else started + seconds + self.listening_seconds

    async def write_state(self, limit: float | None = None, *, drains: bool = False) -> None:
        """Write the state that a script did not find: at first contact, or after the server was flushed.

        With ``drains`` also on a full server: a consumer must be able to start there.
        """
        await self._write_state(limit, drains)
        if self._has_called:
            log.warning(
                "%s: Redis lost this queue's state (flushed or restored); rewrote version, journal and weights",
                self.keys.prefix,
                extra={"queue": self.keys.prefix, "address": self.port.address},
            )

    async def _write_state(self, limit: float | None, drains: bool) -> None:
        weights = [part for one in (self.options.tenant_weights or {}).items() for part in one]
        last = max(0, len(weights) - 1) // _WEIGHTS_A_SCRIPT * _WEIGHTS_A_SCRIPT
        for first in range(0, last + 1, _WEIGHTS_A_SCRIPT):
            field = self.version_field if first == last else ""
            await self._open_queue(limit, drains, field, weights[first : first + _WEIGHTS_A_SCRIPT])
        self.is_prepared = True
        await self._register(limit)

    async def _register(self, limit: float | None) -> None:
        """Add the queue to the registry of the server, if that works: nothing but a list for people depends on it.

        The registry has one entry for all parts, that of the first.
        """
        entry = (("SADD", REGISTRY_KEY, (self._first or self).keys.registry_entry),)
        try:
            (answer,) = await self.until(limit, lambda: self.port.pipeline(REGISTRY_KEY, entry))
        except Exception as error:
            answer = error
        if isinstance(answer, Exception):
            log.debug("%s was not added to the registry of queues: %s", self.keys.prefix, type(answer).__name__)

    async def _open_queue(self, limit: float | None, drains: bool, field: str, weights: Sequence[Argument]) -> None:
        """Open this part, after the first one: with its number and what they share.

        A part that is open already, or refuses this number, needs no first one: that may be on a node that is away.
        """
        self._has_opened, first = True, self._first
        if first is None or await decides_alone(self, limit):
            await self._write(limit, drains, field, weights)
            return
        if first.away is not None and first.watchers:
            raise first.away  # a loop must not wait for it
        await first._open_queue(limit, drains, "", ())
        await follow_first(self, first.keys, limit)
        try:
            await self._write(limit, drains, field, weights)
        except PartitionCountError:
            # A client that had asked the first partition before it grew has opened this one since then.
            await follow_first(self, first.keys, limit)
            await self._write(limit, drains, field, weights)

    async def _write(self, limit: float | None, drains: bool, field: str, weights: Sequence[Argument]) -> None:
        soft = self.options.max_journal_length
        journal: tuple[Argument, ...] = ("", "")
        if self.options.journal:
            journal = (self.port.new_id().hex(), int(self.options.journal == "payload"))
        rules = (int(drains), STATE_VERSION, field, self.partitions, *journal, soft, _UNREAD * soft)
        await self.retry(lambda: self.port.call(self._open, (), (*rules, *weights)), "open the queue", limit=limit)

    def acquire_slot(self) -> ReplySlot:
        """Return a reply slot that nobody else uses until it is released."""
        if self._offered:
            self._collect()
        here = self.port.process()
        process, free = self._free
        if process != here:
            if self.port.owner_pid != here:
                self.port.after_fork()
            # A forked child must not share numbers with its parent: it starts with no slots at all.
            free = deque()
            self._free = (here, free)
        try:
            slot = free.pop()
            self._has_called = True
            return slot
        except IndexError:
            return self._new_slot(here)

    def release_slot(self, slot: ReplySlot) -> None:
        """The slot's last call is over."""
        process, free = self._free
        if slot.process == process:  # in a child that has acquired none yet, `acquire_slot` throws it away
            free.append(slot)

    def release_slot_when_handed_over(self, attempt: ClaimAttempt) -> None:
        """Release the slot as soon as the handler has the messages: until then only its reply can recover them."""
        self._offered.append(attempt)

    def _collect(self) -> None:
        """Take back the slots of attempts whose messages were handed over by now."""
        while True:
            try:
                attempt = self._offered.popleft()
            except IndexError:
                return
            if attempt.state is HANDED_OVER:
                self.release_slot(attempt.slot)
            elif attempt.state is OFFERED:
                self._offered.append(attempt)
                return

    def owns(self, slot: ReplySlot) -> bool:
        """Whether the slot is this process's: after a fork the parent keeps using its own."""
        return slot.process == self.port.process()

    def _new_slot(self, process: int) -> ReplySlot:
        # Each has a name of its own, not a count: two threads that make one at the same time must not share it.
        return ReplySlot(self.port.slot_name(), process, self.keys, self.options, self._keep_ms)

    async def connect(self, started: float, limit: float | None = None) -> None:
        """Connect for the first time. If that fails, nothing was sent, and it is retried for a few seconds only."""
        end = started + min(_FIRST_CONTACT_SECONDS, self.plan.budget_seconds)
        end = end if limit is None else min(end, limit)
        await self.until(max(end, self.port.now() + SHORTEST_ATTEMPT_SECONDS), self.port.connect)
        self.has_connected = True

    def command(self, name: str, slot: ReplySlot, *settings: Argument, **keys: str) -> Command:
        """Return a numbered script for this slot; its first setting is how long Redis remembers the reply."""
        one = self.script(name)
        return Command(one, script_keys(self.keys, one.keys, reply=slot.key, **keys), (self._keep_ms, *settings))

    async def numbered(
        self,
        build: Callable[[ReplySlot], Call],
        *,
        budget: float | None = None,
        cancellations: list[BaseException] | None = None,
    ) -> Any:
        """Run the script that ``build`` returns for a slot, which is this call's until it ends; see `call`."""
        slot = self.acquire_slot()
        try:
            command, extra_keys, arguments = build(slot)
            return await self.call(
                command, arguments, extra_keys=extra_keys, budget=budget, cancellations=cancellations
            )
        finally:
            self.release_slot(slot)

    async def call(
        self,
        command: Command,
        arguments: tuple[Argument, ...],
        *,
        extra_keys: tuple[str, ...] = (),
        budget: float | None = None,
        started: float | None = None,
        limit: float | None = None,
        stopped: Callable[[], bool] | None = None,
        cancellations: list[BaseException] | None = None,
        unanswered: list[BaseException] | None = None,
    ) -> Any:
        """Run a numbered script until its answer arrives, within the retry budget, or until the caller stops it.

        The budget counts from ``started``, if the call has waited for something else before. The last attempt ends at
        the ``limit`` or soon after, and its error knows whether anything was sent.

        With a list for ``cancellations`` these are noted there: a cancellation cuts a request short, and the request
        is sent again under its number. That costs nothing without a cancellation, unlike a task of its own for each
        call. Without a retry budget there is one request, and it has the task: whether it fails must be known.

        With `LoopCancellations` a call without an answer steps aside instead of resting: see `UntilItStepsAside`. The
        list ``unanswered`` gets the errors of requests without an answer, which Redis may still execute.
        """
        if cancellations is not None and self.plan.budget_seconds == 0:
            return await self.port.shielded(cancellations, self.call(command, arguments, extra_keys=extra_keys))
        started = self.port.now() if started is None else started
        if limit is not None:
            budget = limit - started if budget is None else min(budget, limit - started)
        attempt = missed = 0
        end, was_sent = None, False
        aside = cancellations if isinstance(cancellations, LoopCancellations) else None
        if aside is not None and self.away is not None:
            await self._step_aside(aside, command.script.verb, attempt, started)
        while True:
            try:
                try:
                    if not self.has_connected:
                        await self.connect(started, limit)
                    ends_at = None if limit is None and aside is None else self._attempt_ends_at(limit, attempt)
                    if ends_at is None:
                        reply = await self.port.call(command, extra_keys, arguments)
                    else:
                        with (end := AttemptEnd(ends_at)):
                            reply = await self.port.call(command, extra_keys, arguments)
                    if self._has_retried or self.away is not None:
                        self.has_answered()
                    return reply
                except StateMissingError as error:
                    ends_at = limit or self._end_of_retries(started)
                    missed = await self._write_missing_state(error, missed + 1, command, ends_at)
                except Exception as error:
                    attempt += 1
                    was_sent = was_sent or (self.has_connected and not (end and end.had_no_connection))
                    rest = (error, command.script.verb, attempt, started, budget, stopped, aside)
                    await self.rest_before_retry(*rest, was_sent=was_sent)
                    if unanswered is not None:
                        unanswered.append(error)
                    if stopped is not None and stopped():
                        raise
            except BaseException as error:
                if cancellations is None or not self.port.is_cancellation(error):
                    raise
                self._note_cancellation(error, cancellations, command, started)

    def _note_cancellation(
        self, error: BaseException, cancellations: list[BaseException], command: Command, started: float
    ) -> None:
        """Note it. However often it is cancelled, a call has one retry budget, and at least the time of one answer."""
        cancellations.append(error)
        if self.port.now() - started >= max(self.plan.budget_seconds, self.listening_seconds):
            raise self.exhausted(error, command.script.verb, len(cancellations), started) from None

    def _attempt_ends_at(self, limit: float | None, attempt: int) -> float | None:
        """Return when an attempt must end because of its ``limit``, or because other parts could answer a loop."""
        if limit is not None:
            return max(limit, self.port.now() + SHORTEST_ATTEMPT_SECONDS)
        patience = None if attempt else self.patience
        return None if patience is None else self.port.now() + patience

    async def _write_missing_state(
        self, error: StateMissingError, missed: int, command: Command, limit: float | None
    ) -> int:
        """Write the state that a script did not find; raise if it is that of a queue that results are handed to."""
        if missed > MISSED_STATES or not error.is_of(self.keys.meta):
            raise error
        await self.write_state(limit, drains=command.script.name not in _BRINGING_IN)
        return missed

    async def retry(
        self,
        send: Callable[[], Awaitable[T]],
        operation: str,
        budget: float | None = None,
        limit: float | None = None,
    ) -> T:
        """Retry anything else that may be sent more than once; the last attempt ends at the ``limit``."""
        started = self.port.now()
        if limit is not None:
            shortest = 2 ** (FEWEST_ATTEMPTS - 1) * self.plan.initial_delay_seconds
            budget = max(shortest, limit - self.listening_seconds - started)
        attempt = 0
        while True:
            try:
                if not self.has_connected:
                    await self.connect(started)
                result = await self.until(limit, send)
            except Exception as error:
                attempt += 1
                await self.rest_before_retry(error, operation, attempt, started, budget)
            else:
                if self._has_retried:
                    self._say_that_it_is_back()
                return result

    @staticmethod
    async def until(limit: float | None, send: Callable[[], Awaitable[T]]) -> T:
        """Make one attempt that ends at the limit, even if the client would wait longer."""
        if limit is None:
            return await send()
        with AttemptEnd(limit):
            return await send()

    async def pipeline(
        self, key: str, commands: tuple[tuple[Argument, ...], ...], operation: str, limit: float | None = None
    ) -> list[Any]:
        """Send plain commands that may be sent more than once, and retry after transient errors."""

        async def send() -> list[Any]:
            answers = await self.port.pipeline(key, commands)
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
        aside: LoopCancellations | None = None,
        *,
        was_sent: bool = True,
    ) -> None:
        """Sleep until the next attempt or until the caller stops it, or step aside; raise if there is none."""
        if not self.port.is_transient(error) or self.plan.budget_seconds == 0:
            raise error
        if aside is not None:
            budget = min(self.plan.budget_seconds, aside.ends_at() - started)
        if not self.has_connected:
            budget = min(_FIRST_CONTACT_SECONDS, _FIRST_CONTACT_SECONDS if budget is None else budget)
        pause = self.plan.pause(attempt, self.port.now() - started, self.port.random(), budget)
        if pause is None:
            raise self.exhausted(error, operation, attempt, started, was_sent=was_sent) from error
        self._has_retried = True
        if self._outage.note(operation, self.port.now()):
            log.warning(
                "%s: %s failed (%s, redis at %s), retrying %s (attempt %d)",
                self.keys.prefix,
                operation,
                type(error).__name__,
                self.port.address,
                f"in {pause:.3g} s" if aside is None else "beside the loop",
                attempt,
                extra={"queue": self.keys.prefix, "address": self.port.address},
            )
        if aside is not None:
            self.has_failed(error)
            await self._step_aside(aside, operation, attempt, started)
            return
        if stopped is None:
            await self.port.sleep(pause)
            return
        awake_at = self.port.now() + pause
        while pause > 0 and not stopped():
            await self.port.sleep(min(pause, _NAP_SECONDS))
            pause = awake_at - self.port.now()

    async def _step_aside(self, aside: LoopCancellations, operation: str, attempts: int, started: float) -> None:
        """Let the loop go on. Raises if Redis still does not answer when the time for retries is over."""
        await _StepAside()
        ends_at = min(started + self.plan.budget_seconds, aside.ends_at())
        if self.away is not None and self.port.now() >= ends_at:
            raise self.exhausted(self.away, operation, attempts, started) from self.away

    def exhausted(
        self, error: BaseException, operation: str, attempts: int, started: float, *, was_sent: bool = True
    ) -> RetryBudgetExhaustedError:
        """Return the error to raise when there is no further attempt."""
        where, seconds = f"redis at {self.port.address}", self.port.now() - started
        tried = f"{attempts} attempt{'s' if attempts != 1 else ''}"
        if not self.has_connected:
            return RetryBudgetExhaustedError(
                f"{where} could not be reached in {seconds:.1f} s and {tried} ({described(error)}); "
                f"nothing was sent. Check the address, and that the server runs and can be reached from here",
                operation=operation,
                was_sent=False,
            )
        outcome = "nothing was sent, and it is safe to call again"
        if was_sent:
            outcome = (
                "its outcome is unknown, and it is safe to call again later where deduplication or a lease covers it"
            )
        return RetryBudgetExhaustedError(
            f"{operation} got no answer from {where} in {seconds:.1f} s and {tried} "
            f"(last: {type(error).__name__}); {outcome}",
            operation=operation,
            was_sent=was_sent,
        )
