"""Messages for a loop: claimed ahead, acknowledged together with the next claim, given back at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redis_message_queue.checks import flag, number, required_function, whole_number
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.outcome import Outcome
from redis_message_queue.protocol.pace import Pace
from redis_message_queue.protocol.port import Pause, Sidecar
from redis_message_queue.protocol.settle import Note, Riding
from redis_message_queue.protocol.tell import log

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_LARGEST_PREFETCH = 1_000  # what one script may claim
_WAIT_SECONDS = 30.0  # a loop waits until it is stopped, and tells once in that time that nothing came
_NAP_SECONDS = 0.05  # the longest pause between two looks at what another worker does
# How long a message that was delivered this often is handled while nothing else begins: long enough to see it crash
# the process, and not for ever if it hangs.
_ALONE_SECONDS = 10.0
TURN_SECONDS = 0.05  # a claim that takes longer waits for messages, and what is done should not wait with it

Handler = TypeVar("Handler", bound=Callable[..., Any])
Taken = tuple[Claim, str | bytes]
"""A message that was claimed, and its payload as the handler gets it."""


@dataclass(slots=True, eq=False)
class Unit:
    """What a handler is called with at once: one message, or a batch."""

    claims: Sequence[Claim]
    messages: Sequence[ReceivedMessage]
    begun: bool = False  # set by the shell, as its last step before the handler
    taken_at: float = 0.0  # when a worker took it
    expires_at: float = math.inf  # when the first of its leases ends, unless that is renewed
    alone_until: float = 0.0  # until then nothing else begins beside it


@dataclass(slots=True)
class RunSummary:
    """What a loop has done, when it ends."""

    handled: int = 0
    failed: int = 0
    given_back: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Generic[Handler]):
    """How a loop works, checked at its door."""

    handler: Handler
    concurrency: int
    prefetch: int
    batch_size: int | None
    batch_seconds: float | None
    until_empty: bool

    def __post_init__(self) -> None:
        required_function("handler", self.handler)
        whole_number("concurrency", self.concurrency)
        whole_number("prefetch", self.prefetch)
        whole_number("batch_size", self.batch_size, optional=True)
        number("batch_seconds", self.batch_seconds, optional=True, least=0)
        flag("until_empty", self.until_empty)
        if self.batch_seconds is not None and self.batch_size is None:
            raise ConfigurationError("batch_seconds needs batch_size: it is how long a batch may take to fill")
        for name in ("prefetch", "batch_size"):
            if (getattr(self, name) or 0) > _LARGEST_PREFETCH:
                raise ConfigurationError(f"{name} must be at most {_LARGEST_PREFETCH:,}")

    def check_beside(self, *, lease: float | None, has_heartbeat: bool) -> None:
        """Raise for what the leases of the queue do not allow."""
        if self.batch_seconds is None or lease is None or has_heartbeat or self.batch_seconds < lease:
            return
        raise ConfigurationError(
            f"batch_seconds={self.batch_seconds} must be less than the visibility timeout ({lease} s): the first "
            "messages of a batch would lose their leases while it fills; set heartbeat_interval_seconds to renew them, "
            "or lower batch_seconds"
        )


class Feed(Outcome):
    """The messages of one loop, whichever of its threads or tasks works on them.

    A handled message is not acknowledged at once: it waits for the next claim, and both take one round trip. Until
    then its lease is renewed like that of the others, so a crash repeats it, and nothing is lost. If no claim follows
    within half a second, a helper beside the handlers acknowledges it. Without heartbeats the helper also gives back
    what was claimed ahead and will not be begun before its lease ends.

    A message that was delivered before may have crashed its consumer. It is claimed alone: nothing else that nobody
    has begun is held beside it, so that a crash costs no other message a delivery.
    """

    __slots__ = (
        *("_done", "_done_since", "_held", "_helper", "_last_taken_at", "_lock", "_next", "_options", "_pace"),
        *("_redelivered", "_returned", "_returning", "_times_handlers", "_trouble", "_units", "_waiting"),
        *("ended", "summary"),
    )
    is_patient = True  # a loop has no time limit

    keeps_failures = True

    def __init__(self, queue: QueueProtocol, options: RunOptions[Any]) -> None:
        super().__init__(queue)
        lease, has_heartbeat = self._lease_length, queue.options.heartbeat_interval_seconds is not None
        options.check_beside(lease=lease, has_heartbeat=has_heartbeat)
        self._options = options
        self._pace = Pace(
            *(queue.options.name, options.batch_size or options.prefetch, options.concurrency),
            lease=lease,
            has_heartbeat=has_heartbeat,
            in_lists=options.batch_size is not None,
        )
        self._held = self.hold([])
        self._times_handlers = queue.options.max_processing_seconds is not None
        self._waiting: list[tuple[Claim, ReceivedMessage]] = []  # for a batch to be filled
        # What handlers are called with. Whoever takes one steps to the next; they leave here when they are begun, so
        # that they are in one place at least whenever a Ctrl-C comes.
        self._units: list[Unit] = []
        self._next = 0
        self._redelivered: set[Unit] = set()  # units at hand whose messages were delivered before
        self._last_taken_at = 0.0
        self._returning = self._returned = 0  # how often messages are being given back right now, and have been
        self._done: list[Claim] = []
        self._done_since = 0.0
        self._helper: Sidecar | None = None
        self._trouble: Exception | None = None  # what the helper met
        self._lock = queue.port.lock()  # of the units, of what is done, and of the sums
        self.ended = False  # one of the workers has met something that ends them all
        self.summary = RunSummary()

    def open(self) -> None:
        """Begin; the heartbeat lasts as long as the loop."""
        self.queue.store.claimer.allow_batches()
        self._held.stays_open = True
        self.start_heartbeat(self._held)

    @property
    def _lease_length(self) -> float | None:
        return self.queue.store.options.message_visibility_timeout_seconds

    def is_stopped(self) -> bool:
        return self.ended or self.is_inherited or self.queue.is_stopped()

    # -- beside the handlers

    async def _help(self, pause: Pause) -> None:
        """What must not wait until a handler ends, in a thread or a task of its own."""
        while not await pause(self._next_look()):
            if self.is_inherited:
                return
            cancellations: list[BaseException] = []
            try:
                await self._give_back_unreached()
                while self.is_late and (riding := self._board()) is not None:
                    await self._see(riding, cancellations)
            except Exception as error:
                self._trouble, self.ended = error, True
                return
            if cancellations:
                return

    def _next_look(self) -> float:
        if not self._done:
            return self._pace.look_seconds
        due_in = self._done_since + self._pace.flush_seconds - self.queue.port.now()
        return min(self._pace.look_seconds, max(0.01, due_in))

    async def _give_back_unreached(self) -> None:
        """Without heartbeats, what will not be begun before its lease ends is for others, and was never delivered."""
        if not self._pace.counts_time or self._next == len(self._units):
            return
        with self._lock:
            running_seconds = self.queue.port.now() - self._last_taken_at
            left = [self._left(unit) for unit in self._units[self._next :]]
            kept = self._next + self._pace.reachable(left, running_seconds)
            unreached = self._units[kept:]
            del self._units[kept:]
            self._returning += bool(unreached)
        self._pace.warn_if_too_slow(running_seconds)
        if unreached:
            await self._give_back_unbegun(unreached)

    def _left(self, unit: Unit) -> float:
        """How long all of its leases surely last."""
        return min(map(self._held.left, unit.claims))

    async def _give_back_unbegun(self, units: Sequence[Unit]) -> None:
        """As if they had never been claimed; the caller has counted this in `_returning`, and taken them out."""
        claims = [claim for unit in units for claim in unit.claims]
        self._redelivered.difference_update(units)
        self._held.release(claims)
        self.end_work_on(claims)
        try:
            await self.give_back(claims, None, forgiven=True, begun=False)
        finally:
            with self._lock:
                self._returning -= 1
                self._returned += 1

    # -- taking

    def ready(self) -> Unit | None:
        """What is here already, without asking anybody; any number of callers at a time."""
        if self._next == len(self._units) or self.is_stopped():
            return None
        with self._lock:
            if self._next == len(self._units):
                return None
            unit = self._units[self._next]
            now = self.queue.port.now()
            if self._is_short_of_time(unit, now):
                return None  # `next_unit` gives it back
            self._next += 1
            unit.taken_at = self._last_taken_at = now
            if self._helper is None and (self._done or (self._pace.counts_time and self._next < len(self._units))):
                self._helper = self.queue.port.spawn(self._help)
        if self._times_handlers:
            self._held.begin(unit.claims)
        return unit

    def _is_short_of_time(self, unit: Unit, now: float) -> bool:
        """Whether its lease is lost or about to end: nobody begins with such a message."""
        if now + self._pace.reserve < unit.expires_at and not self._held.has_losses:
            return False
        return self._left(unit) <= self._pace.reserve

    def _line_up(self, units: Sequence[Unit]) -> None:
        """For handlers, behind what another one has taken and not yet begun."""
        first = units[0]
        if _was_delivered_before(first.claims[0]):  # then it is the only one
            first.alone_until = self._alone_until(first.claims[0].delivery_count or 0)
            self._redelivered.add(first)
        if (lease := self._pace.lease) is not None:
            for unit in units:
                unit.expires_at = unit.claims[0].claimed_at + lease  # the oldest
        with self._lock:
            taken = [unit for unit in self._units[: self._next] if not unit.begun]
            self._units = [*taken, *self._units[self._next :], *units]
            self._next = len(taken)

    def _alone_until(self, count: int) -> float:
        """A second delivery may begin beside others: many messages have one after an outage, and few are to blame."""
        limit = self.queue.store.options.max_delivery_count
        if count == 2 and (limit is None or limit > 2):
            return 0.0
        return self.queue.port.now() + _ALONE_SECONDS * (count - 1)

    async def next_unit(self) -> Unit | None:
        """What to work on next; None when the loop should end. Only one caller at a time."""
        while await self._wait_for_one():
            if self._waiting:
                await self._fill_a_batch()
            if (unit := self.ready()) is not None:  # another one may have been quicker
                return unit
        return None

    async def _fill_a_batch(self) -> None:
        deadline = self.queue.port.now() + (self._options.batch_seconds or 0.0)
        while not self.is_stopped():
            wanted = self._claim_size() - len(self._waiting)
            left = min(deadline - self.queue.port.now(), self._pace.longest_wait(self._held.left(self._waiting[0][0])))
            if wanted <= 0 or left <= 0 or not await self._refill(wanted, left):
                break
        if self.is_stopped():
            return
        lost = []
        if self._held.has_losses or self._held.left(self._waiting[0][0]) <= self._pace.reserve:
            lost = [claim for claim, _ in self._waiting if self._held.left(claim) <= self._pace.reserve]
        if lost:
            self._held.release(lost)
            self.end_work_on(lost)
            await self.give_back(lost, None, forgiven=True, begun=False)
            dropped = set(lost)
            self._waiting = [(claim, message) for claim, message in self._waiting if claim not in dropped]
        if self._waiting:
            claims, messages = zip(*self._waiting, strict=True)
            self._line_up([Unit(claims, messages)])
            self._waiting = []
        self._raise_if_cancelled()

    async def _wait_for_one(self) -> bool:
        port, until_empty, nap = self.queue.port, self._options.until_empty, 0.001
        wait = 0.0 if until_empty else max(_WAIT_SECONDS, self.queue.store.options.message_wait_interval_seconds)
        while not self.is_stopped():
            if self._waiting:
                return True
            if self._next < len(self._units):
                if not await self._give_back_lost():
                    return True
            elif self._is_one_alone():
                await port.sleep(nap)
                nap = min(_NAP_SECONDS, 2 * nap)
            else:
                returned = self._returned
                came = await self._refill(self._claim_size(), wait)
                if not came and until_empty:
                    if returned == self._returned and not self._returning:
                        return False
                    await port.sleep(0.001)  # what the helper gives back waits again
        return False

    def _claim_size(self) -> int:
        return self._pace.claim_size(is_careful=bool(self._redelivered))

    def _is_one_alone(self) -> bool:
        """Whether a message is at hand that may crash the process, so that nothing else should begin."""
        if not self._redelivered:
            return False
        now = self.queue.port.now()
        return any(now < unit.alone_until for unit in list(self._redelivered))

    async def _give_back_lost(self) -> bool:
        """What waits with a lease that is lost or about to end is not begun. Whether there was any."""
        with self._lock:
            waiting, now = self._units[self._next :], self.queue.port.now()
            if not waiting or not self._is_short_of_time(waiting[0], now):
                return False
            lost = [unit for unit in waiting if self._is_short_of_time(unit, now)]
            dropped = set(lost)
            self._units[self._next :] = [unit for unit in waiting if unit not in dropped]
            self._returning += 1
        log.warning(
            "%s: %d claimed messages are given back and not started: their leases have ended or are about to",
            *(self.queue.options.name, len(lost)),
        )
        await self._give_back_unbegun(lost)
        self._raise_if_cancelled()
        return True

    async def _refill(self, count: int, wait_seconds: float) -> bool:
        """Claim more, and send along what is done. Whether anything came."""
        riding = self._board()
        try:
            taken = await self.take(count, wait_seconds, riding)
            if taken:
                self._keep(await self._choose(taken))
        finally:
            if riding is not None:
                await riding.land()
        self._raise_if_cancelled()
        return bool(taken)

    async def _choose(self, taken: list[Taken]) -> list[Taken]:
        """What to keep of a claim: fresh messages, or one that was delivered before, alone. The rest goes back."""
        redelivered = any((claim.delivery_count or 0) > 1 for claim, _ in taken)
        self._pace.after_claim(redelivered=redelivered)
        if not redelivered:
            return taken
        taken = self._without_what_is_held(taken)
        first = next((place for place, (claim, _) in enumerate(taken) if _was_delivered_before(claim)), len(taken))
        # Up to the first of them, or that one if nothing else waits here.
        kept = first or int(not self._waiting)
        surplus = [claim for claim, _ in taken[kept:]]
        if surplus:
            await self.give_back(surplus, None, forgiven=True, begun=False)
        if first == 0:
            await self.flush()  # what is done must not be done again if this one crashes the process
        return taken[:kept]

    def _without_what_is_held(self, taken: list[Taken]) -> list[Taken]:
        """A message that this loop still holds comes again if its lease has ended: it goes on under the new one."""
        held = {claim.id: claim for claim in self._held.held}
        others = []
        for claim, payload in taken:
            ours = held.get(claim.id)
            if ours is None or self._is_hung(ours):
                others.append((claim, payload))
                continue
            ours.continue_as(claim)
            self._held.renewed([ours], claim.claimed_at)
            log.warning(
                "%s: the lease of message %s ended while this loop still had it; it goes on with a new one. Raise "
                "visibility_timeout_seconds or set heartbeat_interval_seconds",
                *(self.queue.options.name, claim.message_id),
            )
        return others

    def _is_hung(self, claim: Claim) -> bool:
        """Whether its handler has had its time: then the message is for another worker."""
        limit = self.queue.options.max_processing_seconds
        return limit is not None and self._held.worked_on(claim) >= limit

    def _keep(self, taken: Sequence[Taken]) -> None:
        attempt = self.attempt
        assert attempt is not None
        self._held.add([claim for claim, _ in taken], waiting=True)
        self.begin_work_on([claim for claim, _ in taken])
        self.queue.store.claimer.hand_over(attempt)
        messages = [(claim, self.received(claim, payload)) for claim, payload in taken]
        if self._options.batch_size is not None:
            self._waiting += messages
        elif messages:
            self._line_up([Unit((claim,), (message,)) for claim, message in messages])
        attempt.unsure = False  # up to here Ctrl-C or a cancellation leaves a claim that is found again
        self.attempt = None

    # -- settling

    def done(self, unit: Unit) -> None:
        """The handler has returned: the messages are acknowledged soon."""
        claims = self._unsettled(unit) if self.settled else unit.claims
        if self._times_handlers:
            self._held.finish(claims)
        with self._lock:
            if not self._done:
                self._done_since = self.queue.port.now()
            self._done += claims
        if self._pace.counts_time:
            now = self.queue.port.now()
            if now - unit.taken_at > self._pace.notable_seconds:
                self._pace.handled_in(now - unit.taken_at)
            if unit.expires_at - now < 2 * self._pace.flush_seconds:
                self._done_since = -math.inf  # its lease does not last until the next claim
        if self._redelivered:
            self._redelivered.discard(unit)

    def _unsettled(self, unit: Unit) -> list[Claim]:
        """Without those that the handler has completed itself."""
        completed = self.settled.intersection(unit.claims)
        with self._lock:
            self.settled -= completed
            self.summary.handled += len(completed)
        return [claim for claim in unit.claims if claim not in completed]

    @property
    def is_late(self) -> bool:
        """Whether something that is done has waited too long for a claim to travel with."""
        if not self._done or self.is_inherited:
            return False
        return (
            self.queue.port.now() - self._done_since >= self._pace.flush_seconds or len(self._done) >= _LARGEST_PREFETCH
        )

    async def flush(self) -> None:
        """Acknowledge everything that is done, now."""
        if self.is_inherited:
            return
        while (riding := self._board()) is not None:
            await riding.land()

    def _board(self) -> Riding | None:
        """Everything that is done, or the first thousand of it."""
        with self._lock:
            claims, self._done = self._done[:_LARGEST_PREFETCH], self._done[_LARGEST_PREFETCH:]
        if not claims:
            return None
        keep = self.queue.completed
        # One note for all: of messages that were claimed one after the other it does not say when.
        together = {claim.claimed_at for claim in claims} == {claims[0].claimed_at}
        held_for = self.queue.port.now() - claims[0].claimed_at if together else None
        note = None if keep is None else Note("completed", None, held_for)
        self._held.release(claims)  # first, so that a heartbeat in between does not take them for lost
        riding = self.queue.store.settler.ride(claims, keep, note)
        riding.landing = self._land
        return riding

    async def _land(self, riding: Riding) -> None:
        """See what came of it; a cancellation is raised after that."""
        cancellations: list[BaseException] = []
        try:
            await self._see(riding, cancellations)
        finally:
            self._note(cancellations)
        self._raise_if_cancelled()

    async def _see(self, riding: Riding, cancellations: list[BaseException]) -> None:
        """See what came of acknowledgements, sending them by themselves if no claim has; then tell."""
        settler, claims = self.queue.store.settler, riding.claims
        self.end_work_on(claims)
        try:
            settled = await settler.arrive(riding, cancellations)
        except Exception as trouble:
            raise await self._not_acknowledged(claims, trouble) from trouble
        finally:
            settler.dismiss(riding)
        with self._lock:
            self.summary.handled += sum(settled.held)
        await self._tell_acknowledged(claims, settled)

    async def failed(self, unit: Unit, error: Exception) -> None:
        """The handler raised. One message takes the failure path; a batch without a policy goes back as it was."""
        if self.is_inherited:
            return
        claims = self._unsettled(unit)
        if self._pace.counts_time:
            self._pace.handled_in(self.queue.port.now() - unit.taken_at)
        self._held.release(unit.claims)
        self.end_work_on(unit.claims)
        self._log_raised(unit, error)
        if self._options.batch_size is None or self.queue.options.retry_policy is not None:
            for claim in claims:
                await self.fail_one(claim, error)
            with self._lock:
                self.summary.failed += len(claims)
        elif claims:
            given_back = await self.give_back(claims, error, forgiven=False)
            self._pace.after_claim(redelivered=True)  # they come next, each alone
            with self._lock:
                self.summary.given_back += given_back
        self._redelivered.discard(unit)
        self._raise_if_cancelled()

    def _log_raised(self, unit: Unit, error: Exception) -> None:
        others = f" and {len(unit.claims) - 1} others" if len(unit.claims) > 1 else ""
        log.warning(
            "%s: the handler of message %s%s raised %s; the loop goes on",
            *(self.queue.options.name, unit.claims[0].message_id, others, type(error).__name__),
        )

    def leave_alone(self, unit: Unit) -> None:
        """Whatever ended the handler was not an `Exception`: its messages are left to their leases."""
        self._held.release(unit.claims)
        self.end_work_on(unit.claims)
        self._redelivered.discard(unit)

    async def close(self) -> None:
        """Acknowledge what is done, and give back what nobody has begun, as if it had never been claimed."""
        if self.is_inherited:
            return
        self.queue.store.claimer.unsure.leave_to_others(self)
        if self.attempt is not None:
            self.queue.store.claimer.release(self.attempt)
            self.attempt = None
        if self._helper is not None:
            await self._undisturbed(self._helper.end())
        try:
            await self.flush()
        finally:
            lined_up = [claim for unit in self._units if not unit.begun for claim in unit.claims]
            unbegun = list(dict.fromkeys((*lined_up, *(claim for claim, _ in self._waiting))))
            self._waiting, self._units, self._next = [], [], 0
            self._held.release(unbegun)
            self.end_work_on(unbegun)
            if unbegun:
                self.summary.given_back += await self.give_back(unbegun, None, forgiven=True, begun=False)
            self.end_lease()
            await self.stop_heartbeat()
        self._raise_if_cancelled()
        if self._trouble is not None:
            raise self._trouble


def _was_delivered_before(claim: Claim) -> bool:
    return (claim.delivery_count or 0) > 1
