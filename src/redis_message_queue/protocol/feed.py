"""Messages for a loop: claimed ahead, acknowledged together with the next claim, given back at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redis_message_queue.checks import flag, number, required_function, whole_number
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.messages import ReceivedMessage
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.outcome import Outcome
from redis_message_queue.protocol.settle import Note, Riding

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_LARGEST_PREFETCH = 1_000  # what one script may claim
_WAIT_SECONDS = 30.0  # a loop waits until it is stopped, and tells once in that time that nothing came
_PATIENCE_SECONDS = 1.0  # how long a handled message waits for a claim to travel with
TURN_SECONDS = 0.05  # a claim that takes longer waits for messages, and what is done should not wait with it

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class Unit:
    """What a handler is called with at once: one message, or a batch."""

    claims: Sequence[Claim]
    messages: Sequence[ReceivedMessage]
    begun: bool = False  # set by the shell, as its last step before the handler


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


class Feed(Outcome):
    """The messages of one loop, whichever of its threads or tasks works on them.

    A handled message is not acknowledged at once: it waits for the next claim, and both take one round trip. Until
    then its lease is renewed like that of the others, so a crash repeats it, and nothing is lost.
    """

    __slots__ = (
        *("_done", "_done_since", "_held", "_lock", "_next", "_options", "_times_handlers", "_units", "_waiting"),
        *("ended", "summary"),
    )
    is_patient = True  # a loop has no time limit

    def __init__(self, queue: QueueProtocol, options: RunOptions[Any]) -> None:
        super().__init__(queue)
        self._options = options
        self._held = self.hold([])
        self._times_handlers = queue.options.max_processing_seconds is not None
        self._waiting: list[tuple[Claim, ReceivedMessage]] = []  # for a batch to be filled
        # What handlers are called with. Whoever takes one steps to the next; they leave here when they are begun, so
        # that they are in one place at least whenever a Ctrl-C comes.
        self._units: list[Unit] = []
        self._next = 0
        self._done: list[Claim] = []
        self._done_since = 0.0
        self._lock = queue.port.lock()  # of the units, of what is done, and of the sums
        self.ended = False  # one of the workers has met something that ends them all
        self.summary = RunSummary()

    def open(self) -> None:
        """Begin; the heartbeat lasts as long as the loop."""
        self.queue.store.claimer.allow_batches()
        self._held.stays_open = True
        self.start_heartbeat(self._held)

    def is_stopped(self) -> bool:
        return self.ended or self.is_inherited or self.queue.is_stopped()

    # -- taking

    def ready(self) -> Unit | None:
        """What is here already, without asking anybody; any number of callers at a time."""
        if self._next == len(self._units) or self.is_stopped():
            return None
        with self._lock:
            if self._next == len(self._units):
                return None
            unit = self._units[self._next]
            self._next += 1
        if self._times_handlers:
            self._held.begin(unit.claims)
        return unit

    def _line_up(self, units: Sequence[Unit]) -> None:
        """For handlers, behind what another one has taken and not yet begun."""
        with self._lock:
            taken = [unit for unit in self._units[: self._next] if not unit.begun]
            self._units = [*taken, *self._units[self._next :], *units]
            self._next = len(taken)

    async def next_unit(self) -> Unit | None:
        """What to work on next; None when the loop should end. Only one caller at a time."""
        while await self._wait_for_one():
            if self._options.batch_size is not None:
                await self._fill_a_batch(self._options.batch_size)
            if (unit := self.ready()) is not None:  # another one may have been quicker
                return unit
        return None

    async def _fill_a_batch(self, size: int) -> None:
        deadline = self.queue.port.now() + (self._options.batch_seconds or 0.0)
        while len(self._waiting) < size and not self.is_stopped():
            left = deadline - self.queue.port.now()
            if left <= 0 or not await self._refill(size - len(self._waiting), left):
                break
        if not self.is_stopped():
            claims, messages = zip(*self._waiting[:size], strict=True)
            self._line_up([Unit(claims, messages)])
            del self._waiting[:size]

    async def _wait_for_one(self) -> bool:
        while not self.is_stopped():
            if self._waiting or self._next < len(self._units):
                return True
            wanted = self._options.batch_size or self._options.prefetch
            wait = max(_WAIT_SECONDS, self.queue.store.options.message_wait_interval_seconds)
            if not await self._refill(wanted, 0.0 if self._options.until_empty else wait) and self._options.until_empty:
                return False
        return False

    async def _refill(self, count: int, wait_seconds: float) -> bool:
        """Claim more, and send along what is done. Whether anything came."""
        riding = self._board()
        try:
            taken = await self.take(count, wait_seconds, riding)
            if taken:
                self._keep(taken)
        finally:
            if riding is not None:
                await riding.land()
        return bool(taken)

    def _keep(self, taken: Sequence[tuple[Claim, str | bytes]]) -> None:
        attempt = self.attempt
        assert attempt is not None
        self._held.add([claim for claim, _ in taken], waiting=True)
        self.queue.store.claimer.hand_over(attempt)
        messages = [(claim, self.received(claim, payload)) for claim, payload in taken]
        if self._options.batch_size is None:
            self._line_up([Unit((claim,), (message,)) for claim, message in messages])
        else:
            self._waiting += messages
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
        return self.queue.port.now() - self._done_since >= _PATIENCE_SECONDS or len(self._done) >= _LARGEST_PREFETCH

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
        """See what came of it, sending it by itself if no claim has; then tell."""
        settler, claims = self.queue.store.settler, riding.claims
        cancellations: list[BaseException] = []
        try:
            settled = await settler.arrive(riding, cancellations)
        except Exception as trouble:
            raise await self._not_acknowledged(claims, trouble) from trouble
        finally:
            self._note(cancellations)
            settler.dismiss(riding)
        with self._lock:
            self.summary.handled += sum(settled.held)
        await self._tell_acknowledged(claims, settled)
        self._raise_if_cancelled()

    async def failed(self, unit: Unit, error: Exception) -> None:
        """The handler raised. One message takes the failure path; a batch without a policy goes back as it was."""
        if self.is_inherited:
            return
        claims = self._unsettled(unit)
        self._held.release(unit.claims)
        if self._options.batch_size is None or self.queue.options.retry_policy is not None:
            for claim in claims:
                await self.fail_one(claim, error)
            with self._lock:
                self.summary.failed += len(claims)
        elif claims:
            given_back = await self.give_back(claims, error, forgiven=False)
            with self._lock:
                self.summary.given_back += given_back
        self._raise_if_cancelled()

    def leave_alone(self, unit: Unit) -> None:
        """Whatever ended the handler was not an `Exception`: its messages are left to their leases."""
        self._held.release(unit.claims)

    async def close(self) -> None:
        """Acknowledge what is done, and give back what nobody has begun, as if it had never been claimed."""
        if self.is_inherited:
            return
        self.queue.store.claimer.unsure.leave_to_others(self)
        if self.attempt is not None:
            self.queue.store.claimer.release(self.attempt)
            self.attempt = None
        try:
            await self.flush()
        finally:
            lined_up = [claim for unit in self._units if not unit.begun for claim in unit.claims]
            unbegun = list(dict.fromkeys((*lined_up, *(claim for claim, _ in self._waiting))))
            self._waiting, self._units, self._next = [], [], 0
            self._held.release(unbegun)
            if unbegun:
                self.summary.given_back += await self.give_back(unbegun, None, forgiven=True)
            self.end_lease()
            await self.stop_heartbeat()
        self._raise_if_cancelled()
