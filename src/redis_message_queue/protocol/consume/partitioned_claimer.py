"""How a consumer gets messages of a queue with partitions: from each in turn, and one wait for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.consume.claim import (
    FRESH,
    PATIENCE_SECONDS,
    TIMER_OWNER,
    WOKEN,
    Claimant,
    ClaimResult,
)
from redis_message_queue.protocol.consume.claim_attempt import IDLE, UNCONFIRMED, ClaimAttempt, UnconfirmedClaims
from redis_message_queue.values.errors import RetryBudgetExhaustedError

if TYPE_CHECKING:
    from redis_message_queue.protocol.consume.settle import Acks
    from redis_message_queue.protocol.parts import Part, Parts

_LOOK_SECONDS = 0.5  # how long a loop waits at the most before it looks again at a partition that was away
_FIRST_REST_SECONDS = 0.1  # how long a partition that failed is left alone at first, while others answer


class PartitionedUnconfirmed:
    """The unconfirmed claims of all partitions; each of them keeps its own."""

    def __init__(self, parts: Sequence[UnconfirmedClaims]) -> None:
        self._parts = parts

    @property
    def attempts(self) -> list[ClaimAttempt]:
        return [attempt for part in self._parts for attempt in part.attempts]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def leave_to_others(self, consumer: object) -> None:
        for part in self._parts:
            part.leave_to_others(consumer)


class _Visit(Claimant):
    """A consumer during a claim in one partition: it does not wait for a node that does not answer."""

    __slots__ = ("_claimant", "_part")

    def __init__(self, claimant: Claimant, part: Part) -> None:
        super().__init__(claimant.queue_name)
        self.has_one_attempt = True
        self._claimant = claimant
        self._part = part

    def is_stopped(self) -> bool:
        return self._claimant.is_stopped()

    async def on_retry(self, error: Exception, tries: int) -> None:
        await self._claimant.on_retry(error, tries)

    async def on_dead(self, result: ClaimResult) -> None:
        await self._claimant.on_dead(result)

    async def on_tick(self, limit: float | None, part: Part | None = None) -> None:
        """Publish the ticks of this partition: the others have alarms of their own."""
        await self._claimant.on_tick(limit, self._part)


class PartitionedClaimer:
    """Claims for all consumers of one queue object, with the claimer of each partition.

    A claim takes from one partition. The next one begins with the next partition, whatever the others have, so each is
    served within as many claims as there are partitions. A partition whose node does not answer is left alone for a
    while, as long as others do. A loop leaves it alone until it is known to answer again.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._claimers = claimers = tuple(part.claimer for part in parts)
        self._calls_of = calls = tuple(part.calls for part in parts)
        self._port = calls[0].port
        self._wakeups = {one.keys.wakeup: number for number, one in enumerate(calls)}
        self._numbers = {one.keys.prefix: number for number, one in enumerate(calls)}
        self.unconfirmed = PartitionedUnconfirmed([one.unconfirmed for one in claimers])
        self.slice_seconds = claimers[0].slice_seconds
        # Consumers that start together should not all begin with the same partition.
        self._turn = int(self._port.random() * len(claimers))
        self._has_some = [False] * len(claimers)  # whether the last claim found messages there
        self._failures = [0] * len(claimers)  # in a row
        self._rests_until = [0.0] * len(claimers)
        self._silent_since: float | None = None  # since when there are failures, and no answer from any

    def _number_of(self, attempt: ClaimAttempt) -> int:
        return self._numbers[attempt.slot.prefix]

    def is_silent(self) -> bool:
        return self._silent_since is not None

    def attempt(self) -> ClaimAttempt:
        self._turn = turn = (self._turn + 1) % len(self._claimers)
        return self._claimers[turn].attempt()

    def offer(self, attempt: ClaimAttempt) -> None:
        self._claimers[self._number_of(attempt)].offer(attempt)

    def release(self, attempt: ClaimAttempt, claimant: object) -> None:
        self._claimers[self._number_of(attempt)].release(attempt, claimant)

    def limit(self, deadline: float) -> float:
        return self._claimers[0].limit(deadline)

    # -- recovering

    async def recover(self, claimant: Claimant, limit: float | None = None) -> tuple[ClaimAttempt, ClaimResult] | None:
        """Ask what an unconfirmed claim of any partition took."""
        for number, claimer in enumerate(self._claimers):
            while claimer.unconfirmed and not self._is_resting(number):
                recovered = await self._recover_one(number, claimant, limit)
                if recovered is None:
                    break
                attempt, result = recovered
                if result.unconfirmed and not claimant.is_stopped():
                    self._has_failed(number, claimant)
                    claimer.release(attempt, claimant)
                    continue
                _mark(result, self._parts[number])
                return recovered
        return None

    async def _recover_one(
        self, number: int, claimant: Claimant, limit: float | None
    ) -> tuple[ClaimAttempt, ClaimResult] | None:
        """As a claimer does it, with one attempt."""
        claimer, limit = self._claimers[number], self._visit_limit(number, limit)
        attempt = claimer.unconfirmed.recover_next(claimant)
        if attempt is None:
            return None
        try:
            visit = _Visit(claimant, self._parts[number])
            result = await claimer.exchange(attempt, (attempt.call, 0, 0, FRESH), visit, limit=limit)
        except BaseException:
            claimer.unconfirmed.leave_to_others(claimant)
            raise
        if not result.unconfirmed:
            result.recovered = True
            attempt.apply("receive" if result.claims else "receive_nothing")
        return attempt, result

    # -- claiming

    async def claim(
        self,
        attempt: ClaimAttempt,
        claimant: Claimant,
        wait_seconds: float,
        count: int = 1,
        acks: Acks | None = None,
        limit: float | None = None,
    ) -> ClaimResult:
        """Claim up to ``count`` messages of one partition, and wait for the first if no partition has any."""
        port = self._port
        left, deadline = wait_seconds, port.now() + wait_seconds
        if limit is None and claimant.has_time_limit:
            limit, claimant.wait_ends_at = self.limit(deadline), port.now() + max(wait_seconds, PATIENCE_SECONDS)
        round = _Round(self, attempt, claimant, count, acks, limit)
        round.deadline = deadline if wait_seconds else None
        first, woken = self._number_of(attempt), list[int]()
        while not claimant.is_stopped():
            round.slice_us = int(min(left, self.slice_seconds) * 1_000_000)
            result = await round.visit_all(self._order(first, woken), woken)
            woken = []
            if result is None and self._is_given_up():
                result = await round.insist()
            if result is not None:
                return result
            if self._can_recover() and not claimant.is_stopped():
                return ClaimResult(again=True)
            left = max(0.0, deadline - port.now())
            # A loop that ends when the queue is empty must not take silence for emptiness.
            is_uncertain = claimant.needs_certainty and round.answered < len(self._claimers)
            if is_uncertain:
                self._raise_if_one_is_given_up()
            is_last = claimant.has_time_limit or claimant.has_one_attempt or (round.answered and not is_uncertain)
            if claimant.is_stopped() or (left <= 0 and is_last):
                return ClaimResult(unconfirmed=not round.answered)
            await round.confirm_acks()
            woken = await self._wait(round, max(left, _LOOK_SECONDS) if is_uncertain else left)
            left = max(0.0, deadline - port.now())
        for number in woken:
            await self._claimers[number].notify(limit)
        return ClaimResult()

    def _order(self, first: int, woken: Sequence[int]) -> Iterator[int]:
        """In which order to look: at those that were named, then where messages were last time, then at the others.

        Those that rest are left out, unless all of them do.
        """
        count = len(self._claimers)
        all_rest = all(map(self._is_resting, range(count)))
        around = [(first + step) % count for step in range(1, count)]
        with_some = [number for number in around if self._has_some[number]]
        seen = set()
        for number in (*woken, first, *with_some, *around):
            if number not in seen and (all_rest or not self._is_resting(number)):
                seen.add(number)
                yield number

    async def _wait(self, round: _Round, left: float) -> list[int]:
        """Wait until a message comes, a timer of ours ends, or a slice is over. Returns where a wake-up came."""
        port, now = self._port, self._port.now()
        next_timer = min(round.timers.values(), default=None)
        ends = [self._look_at(number) for number in range(len(self._claimers)) if self._is_resting(number)]
        if len(ends) == len(self._claimers):
            rest = min(ends) - now
            await port.sleep(max(0.0, min(rest, left) if round.claimant.has_time_limit else rest))
            return []
        seconds = min([left, self.slice_seconds, *(end - now for end in ends)])
        punctual = next_timer is not None and next_timer - now <= seconds
        if next_timer is not None:
            seconds = min(seconds, next_timer - now)
        if seconds <= 0:
            return []
        wakeups = tuple(key for key, number in self._wakeups.items() if not self._is_resting(number))
        round.claimant.on_wait(True)
        try:
            wait = partial(port.wait_any, wakeups, seconds, punctual=punctual)
            return [self._wakeups[key] for key in await Calls.until(round.limit, wait)]
        except Exception as error:
            if not port.is_transient(error):
                raise
            # Where the wake-up keys cannot be read, polling must not become a storm.
            await port.sleep(min(seconds, self._calls_of[0].plan.max_delay_seconds, 0.25))
            return []
        finally:
            round.claimant.on_wait(False)

    # -- partitions that do not answer

    def _is_resting(self, number: int) -> bool:
        calls = self._calls_of[number]
        return calls.away is not None and (calls.watchers > 0 or self._port.now() < self._rests_until[number])

    def _look_at(self, number: int) -> float:
        """When to look again at a partition that rests: sooner, if somebody finds out when it answers again."""
        return self._port.now() + _LOOK_SECONDS if self._calls_of[number].watchers else self._rests_until[number]

    def _can_recover(self) -> bool:
        """Whether a claim of a partition that answers is unconfirmed, so that it may have taken messages."""
        for number, claimer in enumerate(self._claimers):
            if not self._is_resting(number) and any(one.state is UNCONFIRMED for one in claimer.unconfirmed.attempts):
                return True
        return False

    def _visit_limit(self, number: int, limit: float | None) -> float | None:
        """When a request to this partition is given up, because another one may answer.

        While none of them answers, the time for one request grows. It is still given up: redis-py asks one node after
        the other for the layout of the cluster, in any order, and may be waiting for the one that is frozen.
        """
        calls = self._calls_of[number]
        patience = calls.patience
        if patience is None:
            return limit
        if all(one.away is not None for one in self._calls_of):
            patience = min(calls.listening_seconds, patience * 2.0 ** min(self._failures[number], 60))
        ends_at = self._port.now() + patience
        return ends_at if limit is None else min(limit, ends_at)

    def _raise_if_one_is_given_up(self) -> None:
        """Raise if a partition has not answered for the whole retry budget."""
        for number, calls in enumerate(self._calls_of):
            error, since = calls.away, calls.away_since
            if error is not None and self._port.now() - since >= calls.plan.budget_seconds:
                raise calls.exhausted(error, "claim", self._failures[number], since) from error

    def _is_given_up(self) -> bool:
        """Whether no partition has answered for the whole retry budget, or none was ever reached."""
        if self._silent_since is None:
            return False
        budget = self._calls_of[0].plan.budget_seconds
        has_connected = any(calls.has_connected for calls in self._calls_of)
        return not has_connected or self._port.now() - self._silent_since >= budget

    def _has_failed(self, number: int, claimant: Claimant) -> None:
        if self._silent_since is None:
            self._silent_since = self._port.now()
        self._failures[number] += 1
        longest = self._calls_of[number].plan.max_delay_seconds
        pause = min(longest, _FIRST_REST_SECONDS * 2.0 ** min(self._failures[number] - 1, 60))
        self._rests_until[number] = self._port.now() + pause
        if self._calls_of[number].patience is not None:
            claimant.on_away(self._parts[number])

    def _has_answered(self, number: int, result: ClaimResult, seconds: float = 0.0) -> None:
        self._calls_of[number].has_answered(seconds)
        self._silent_since = None
        self._failures[number] = 0
        self._has_some[number] = bool(result.claims)


class _Round:
    """One claim of a consumer, from its first look at a partition until it has messages or gives up."""

    def __init__(
        self,
        claimer: PartitionedClaimer,
        attempt: ClaimAttempt,
        claimant: Claimant,
        count: int,
        acks: Acks | None,
        limit: float | None,
    ) -> None:
        self._claimer = claimer
        self._attempt = attempt
        self.claimant = claimant
        self._count = count
        self._acks = acks
        self.limit = limit
        self.deadline: float | None = None
        self.slice_us = 0
        self.timers: dict[int, float] = {}  # partitions that count on us to wake up at this time
        self._has_waited = False
        self.answered = 0  # how many of the partitions that were visited

    async def visit_all(self, numbers: Iterable[int], woken: Sequence[int]) -> ClaimResult | None:
        """Look at one partition after the other. Returns the first messages, None without any."""
        self.answered = 0
        unused = dict.fromkeys(woken)  # wake-ups that we took
        for number in numbers:
            if self.claimant.is_stopped():
                break
            unused.pop(number, None)
            began, limit = self._claimer._port.now(), self._claimer._visit_limit(number, self.limit)
            result = await self._claim_in(number, _Visit(self.claimant, self._claimer._parts[number]), limit)
            if result.unconfirmed and not self.claimant.is_stopped():
                self._claimer._has_failed(number, self.claimant)
                continue
            self.answered += 1
            self._claimer._has_answered(number, result, self._claimer._port.now() - began)
            if result.claims or result.unconfirmed:
                await self._pass_on(number, unused)
                return result
        for number in unused if self.claimant.is_stopped() else ():
            await self._claimer._claimers[number].notify(self.limit)
        self._has_waited = True  # the next look follows a wait
        return None

    async def insist(self) -> ClaimResult | None:
        """No partition answers: claim from one that failed, for as long as a queue without partitions would."""
        claimer = self._claimer
        if not self.claimant.has_time_limit and any(calls.has_connected for calls in claimer._calls_of):
            assert claimer._silent_since is not None
            away = ((calls, calls.away) for calls in claimer._calls_of)
            calls, error = next((calls, error) for calls, error in away if error is not None)
            raise calls.exhausted(error, "claim", max(claimer._failures), claimer._silent_since) from error
        for number, failures in enumerate(claimer._failures):
            if failures and not self.claimant.is_stopped():
                result = await self._claim_in(number, self.claimant, self.limit)
                if not result.unconfirmed:
                    claimer._has_answered(number, result)
                if result.claims or result.unconfirmed:
                    return result
        return None

    async def _claim_in(self, number: int, claimant: Claimant, limit: float | None) -> ClaimResult:
        claimer = self._claimer._claimers[number]
        calls = self._claimer._calls_of[number]
        attempt = self._attempt_in(number)
        if not calls.is_prepared and not await self._prepare(number, limit):
            return ClaimResult(unconfirmed=True)
        origin = TIMER_OWNER if self.timers.pop(number, None) is not None else WOKEN if self._has_waited else FRESH
        while True:
            attempt.call = attempt.slot.next_call()
            attempt.apply("send")
            request = (attempt.call, self._count, self.slice_us, origin)
            ack = None if self._acks is None else self._acks.part_for(self._claimer._parts[number])
            result = await claimer.exchange(attempt, request, claimant, ack, self.deadline, limit)
            if result.unconfirmed:
                return result
            attempt.apply("receive" if result.claims else "receive_nothing")
            if result.claims or not result.again or claimant.is_stopped():
                break
        _mark(result, self._claimer._parts[number])
        if result.wake_after is not None:
            self.timers[number] = calls.port.now() + result.wake_after
        return result

    async def _prepare(self, number: int, limit: float | None) -> bool:
        """Write the state of a partition; False if it does not answer, and others may."""
        claimer, calls = self._claimer._claimers[number], self._claimer._calls_of[number]
        try:
            return await claimer.prepare(calls.port.now(), limit)
        except Exception as error:
            is_alone = limit is None or limit == self.limit
            if is_alone or not (calls.port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)):
                raise
            calls.has_failed(error)
            return False

    def _attempt_in(self, number: int) -> ClaimAttempt:
        """An attempt in this partition; the consumer knows it before anything is sent."""
        if self._claimer._number_of(self._attempt) != number or self._attempt.state is not IDLE:
            self._claimer.release(self._attempt, self.claimant)
            self._attempt = self._claimer._claimers[number].attempt()
            self.claimant.on_attempt(self._attempt)
        return self._attempt

    async def _pass_on(self, taken_from: int, unused: Iterable[int]) -> None:
        """We leave with messages of one partition: others may have woken us, or count on us for their next timer."""
        self.timers.pop(taken_from, None)
        claimers = self._claimer._claimers
        for number in unused:
            if number not in self.timers and not self._claimer._is_resting(number):
                await claimers[number].notify(self._claimer._visit_limit(number, self.limit))
        for number in self.timers:
            if self._claimer._is_resting(number):
                continue
            # With a count of 0 it takes nothing; it says that we are gone, and wakes another consumer.
            attempt, visit = claimers[number].attempt(), _Visit(self.claimant, self._claimer._parts[number])
            attempt.call = attempt.slot.next_call()
            attempt.apply("send")
            limit = self._claimer._visit_limit(number, self.limit)
            result = await claimers[number].exchange(attempt, (attempt.call, 0, 0, TIMER_OWNER), visit, limit=limit)
            if result.unconfirmed:
                self._claimer._has_failed(number, self.claimant)
            else:
                attempt.apply("receive_nothing")
            claimers[number].release(attempt, self.claimant)
        self.timers.clear()

    async def confirm_acks(self) -> None:
        """Report acks that were answered, and send the others, before a wait that may last."""
        if self._acks is not None and (self._acks.is_answered or not self._acks.shares_server):
            await self._acks.confirmed()
            self._acks = None


def _mark(result: ClaimResult, part: Part) -> None:
    """Note where messages came from: they are settled there."""
    for claim in result.claims:
        claim.part = part
