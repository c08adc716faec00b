"""Shares the handlers of one process among the loops of several queues, by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.calls import log, never_stop
from redis_message_queue.protocol.loop.run_options import RunSummary, add
from redis_message_queue.values.checks import is_async_function, whole_number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief

if TYPE_CHECKING:
    from redis_message_queue.protocol.loop.worker_loop import Loop

MOST_WEIGHT = 1_000
# After this long a worker takes a free place out of turn: the worker whose turn it is may wait for its server.
PATIENCE_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Member:
    """One loop: its weight, and where it stands.

    ``virtual_time`` grows by 1/weight with each handler that starts, so the loop with the smallest one is next.
    """

    weight: int
    workers: int  # those that wait for a handler to start, or are about to
    is_silent: Callable[[], bool]  # whether its Redis has not answered the last claim
    virtual_time: float = 0.0
    is_idle: bool = False  # its queue was empty, and one of its workers waits there without a place
    held: int = 0  # places that were taken together with the first one, for messages that are claimed with its message

    @property
    def is_waiting(self) -> bool:
        return self.workers > 0 and not self.is_idle


class WeightedTurns:
    """Decides which loop starts the next handler, while at most ``places`` of them run.

    A worker needs a place before it claims, so a message is claimed only when its handler can start, and no prefetch
    takes more than its share. A queue without messages gives its turns to the others; it saves none up for later.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._members: list[Member] = []
        self._now = 0.0  # the virtual time of the last start

    @property
    def has_room(self) -> bool:
        """Whether a place is free."""
        return self._free > 0

    def join(self, weight: int, workers: int, is_silent: Callable[[], bool] = never_stop) -> Member:
        """Add a loop with this many workers."""
        member = Member(weight, workers, is_silent)
        self._members.append(member)
        return member

    def start(self, member: Member, *, whoever_waits: bool = False) -> bool:
        """Take a place, if one is free and it is this loop's turn; with ``whoever_waits``, if one is free at all."""
        if member.is_idle:
            member.is_idle = False
            member.virtual_time = max(member.virtual_time, self._now)
        if self._free <= 0 or not (whoever_waits or member is min(self._waiting(), key=_virtual_time)):
            return False
        self._free -= 1
        member.workers -= 1
        self._now = max(self._now, member.virtual_time)
        member.virtual_time += 1 / member.weight
        return True

    def hold(self, member: Member, most: int) -> int:
        """Take up to so many more places, as long as it is this loop's turn. Returns how many it has taken."""
        while member.held < most and self.start(member):
            member.held += 1
        return member.held

    def use_held(self, member: Member) -> bool:
        """Start a handler in a place that is held for it. Returns False if there is none."""
        member.held -= (has_one := member.held > 0)
        return has_one

    def keep_held(self, member: Member, messages: int) -> None:
        """Hold no more places than messages have come."""
        while member.held > messages:
            member.held -= 1
            self.give_back(member)

    def give_back(self, member: Member) -> None:
        """Give a place back unused."""
        self.done(member)
        member.virtual_time -= 1 / member.weight

    def rest(self, member: Member) -> None:
        """Nothing was there: give the place back unused, and let the others have the turns."""
        self.give_back(member)
        member.is_idle = True

    def done(self, member: Member) -> None:
        """A handler has ended: its worker wants the next place at once, so that no other loop slips in between."""
        self._free += 1
        member.workers += 1

    def leave(self, member: Member) -> None:
        """The loop has ended."""
        self._free += member.held
        self._members.remove(member)

    def go_on_without(self, member: Member, queue: str, error: Exception) -> bool:
        """Log that the Redis of one loop is away. Returns False if that is so for all of them."""
        if all(one is member or one.is_silent() for one in self._members):
            return False
        log.error("%s: %s; the other queues go on, and this one is tried again", queue, error, extra={"queue": queue})
        return True

    def _waiting(self) -> list[Member]:
        return [member for member in self._members if member.is_waiting]


def _virtual_time(member: Member) -> float:
    return member.virtual_time


@dataclass(frozen=True, slots=True)
class Share:
    """How one of several queues is served: by which handler, and with which weight."""

    handler: Callable[[Any], Any]
    weight: int


def checked_shares(queues: Any, handler: Any, kind: type[Any]) -> dict[Any, Share]:
    """Return how each queue is served. Raises for what cannot be served together."""
    if not isinstance(queues, Mapping) or not queues:
        raise ConfigurationTypeError(
            "queues must be a mapping of queues to weights, such as {urgent: 3, normal: 1}, or to handlers, such as "
            f"{{orders: charge, mails: (send, 3)}}, not {brief(queues)}"
        )
    for queue in queues:
        if not isinstance(queue, kind):
            raise ConfigurationTypeError(
                f"queues must contain objects of {kind.__module__.rpartition('.')[0]}, not {brief(queue)}"
            )
    shares = {queue: _share(value, handler) for queue, value in queues.items()}
    if len({is_async_function(share.handler) for share in shares.values()}) > 1:
        raise ConfigurationTypeError(
            "some handlers in queues are async functions and others are not; one loop needs handlers of one kind"
        )
    return shares


def _share(value: Any, handler: Any) -> Share:
    """Return how one queue is served, from its weight, its handler, or a tuple of its handler and its weight."""
    if isinstance(value, tuple) and len(value) == 2:
        own, weight = value
    else:
        own, weight = (value, 1) if callable(value) else (None, value)
    if (own is None) == (handler is None):
        raise ConfigurationTypeError(
            "pass either weights and one handler, as in run_queues({urgent: 3, bulk: 1}, handle), or a handler for "
            "each queue, as in run_queues({orders: charge, mails: (send, 3)})"
        )
    whole_number("a weight in queues", weight)
    if weight > MOST_WEIGHT:
        raise ConfigurationError(f"a weight in queues must be at most {MOST_WEIGHT:,}, not {brief(weight)}")
    return Share(handler if own is None else own, weight)


class Rounds:
    """The loops of several queues, in rounds: with ``until_empty`` a handler may fill a queue that was empty before."""

    def __init__(self, count: int) -> None:
        # In one place, so that another thread sees either a loop that runs or the total that has it.
        self._state: tuple[list[RunSummary], Sequence[Loop]] = ([RunSummary()] * count, ())
        self._stopped_by: Signals | None = None

    def begin(self, loops: Sequence[Loop]) -> None:
        """A round begins."""
        self._state = self._state[0], loops
        if self._stopped_by is not None:
            self.stop(self._stopped_by)

    def stop(self, signal: Signals) -> None:
        """Start no new work in this round, and begin no other."""
        self._stopped_by = signal
        for loop in self._state[1]:
            loop.stop(signal)

    def end(self) -> bool:
        """A round has ended. Returns whether another one should begin: it found something, and nobody stops it."""
        (_, loops), totals = self._state, self.summaries()
        self._state = totals, ()
        has_found = any(loop.summary.attempts or loop.summary.refused_at_claim for loop in loops)
        return has_found and self._stopped_by is None

    def summaries(self) -> list[RunSummary]:
        """What was done with the messages of each queue so far."""
        totals, loops = self._state
        return [add(total, loop.summary) for total, loop in zip(totals, loops, strict=True)] if loops else totals
