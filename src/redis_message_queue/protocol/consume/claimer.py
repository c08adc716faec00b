"""How a consumer gets messages: from each part in turn, at once if there are some, else when a wake-up key says so."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.consume.claim import FRESH, TIMER_OWNER, WOKEN, Claimant, ClaimResult
from redis_message_queue.protocol.consume.claim_attempt import IDLE, UNCONFIRMED, ClaimAttempt
from redis_message_queue.values.errors import RetryBudgetExhaustedError

if TYPE_CHECKING:
    from redis_message_queue.protocol.consume.settle import PiggybackedAck
    from redis_message_queue.protocol.parts import Part, Parts

PATIENCE_SECONDS = 0.5  # for so long a claim that does not wait is repeated while Redis does not answer
# The slice of a loop is longer: 28 of them in 30 seconds, 29 claims and three worker entries are two commands a second.
_LOOP_SLICE = 30 / 28
_LOOK_SECONDS = 0.5  # how long a loop waits at the most before it looks again at a part that was away


class Claimer:
    """Claims for all consumers of one queue object, and recovers claims whose answer was lost.

    A claim takes from one part. The next one begins with the next part, whatever the others have, so each is served
    within as many claims as there are parts. A part whose node does not answer is left alone for a while, as long as
    others do. A loop leaves it alone until it is known to answer again. The only part of a queue is never left alone:
    a claim there is retried, as long as its caller waits.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._count = len(parts)
        self.is_alone = self._count == 1  # whether there is only one part
        self.port = parts[0].calls.port
        self.slice_seconds = parts[0].claimer.slice_seconds
        self.listening_seconds = parts[0].calls.listening_seconds  # so much longer than its wait a claim may take
        # Consumers that start together should not all begin with the same part.
        self._turn = 0 if self.is_alone else int(self.port.random() * self._count)

    def attempt(self) -> ClaimAttempt:
        """Begin; the reply slot is the attempt's until its messages are handed over or it is released."""
        self._turn = turn = (self._turn + 1) % self._count
        part = self.parts[turn]
        return ClaimAttempt(part, part.calls.acquire_slot())

    def offer(self, attempt: ClaimAttempt) -> None:
        """The handler is about to get the messages: the slot is free as soon as the attempt is `HANDED_OVER`."""
        part = attempt.part
        attempt.apply("offer")
        if attempt.recovered_by is not None:
            part.claimer.unconfirmed.discard(attempt)
        part.calls.release_slot_when_handed_over(attempt)

    def release(self, attempt: ClaimAttempt, claimant: object) -> None:
        """The claimant is done with the attempt; what that may have taken is left to the next claim or a drain."""
        part = attempt.part
        if part.claimer.unconfirmed.release(attempt, claimant):
            part.calls.release_slot(attempt.slot)

    # -- recovering

    @property
    def unconfirmed(self) -> list[ClaimAttempt]:
        """The attempts of this process whose messages no handler has got."""
        found: list[ClaimAttempt] = []
        for part in self.parts:
            if part.claimer.unconfirmed.attempts:
                found += part.claimer.unconfirmed.ours()
        return found

    def leave_to_others(self, claimant: object) -> None:
        """Stop recovering: whatever this claimant had begun to recover is there for the next one."""
        for part in self.parts:
            part.claimer.unconfirmed.leave_to_others(claimant)

    async def recover(self, claimant: Claimant, limit: float | None = None) -> tuple[ClaimAttempt, ClaimResult] | None:
        """Ask Redis what one unconfirmed claim took; None if every unconfirmed claim is already being recovered.

        The attempt stays unconfirmed until its messages have a handler or there turn out to be none, and also if the
        ``limit`` comes before the answer.
        """
        for part in self.parts:
            while part.claimer.unconfirmed.attempts and not self.is_resting(part):
                attempt = part.claimer.unconfirmed.recover_next(claimant)
                if attempt is None:
                    break
                result = await self._ask(part, attempt, claimant, self.visit_limit(part, limit))
                if result.unconfirmed and not (self.is_alone or claimant.is_stopped()):
                    self.leave_alone(part, claimant)
                    self.release(attempt, claimant)
                    continue
                return attempt, result
        return None

    async def _ask(self, part: Part, attempt: ClaimAttempt, claimant: Claimant, limit: float | None) -> ClaimResult:
        # With a count of 0 the script only repeats its answer; if the call never arrived, it never will.
        request = (attempt.call, 0, 0, FRESH)
        try:
            result = await part.claimer.exchange(
                attempt, request, claimant, limit=limit, has_one_attempt=self.has_one_attempt(claimant)
            )
        except BaseException:
            part.claimer.unconfirmed.leave_to_others(claimant)
            raise
        if not result.unconfirmed:
            result.recovered = True
            attempt.apply("receive" if result.claims else "receive_nothing")
        return result

    # -- claiming

    def claim(
        self,
        attempt: ClaimAttempt,
        claimant: Claimant,
        wait_seconds: float,
        count: int | None = 1,
        acks: list[PiggybackedAck] | None = None,
        limit: float | None = None,
    ) -> Coroutine[Any, Any, ClaimResult]:
        """Claim up to ``count`` messages of one part, and wait for the first if none has any. The result may be empty.

        Without a count each request is for as many as the claimant wants then.

        It ends at the ``limit``, or so long after its wait as one answer takes.

        A claimant with a time limit does not wait much longer for a Redis that cannot be reached: the claim ends
        unconfirmed, until no claim has had an answer for the whole retry budget. Others use that budget each time.
        """
        return ClaimRound(self, attempt, claimant, count, acks, limit).run(wait_seconds)

    def order(self, first: Part, woken: Sequence[Part]) -> Iterable[Part]:
        """In which order to look: at those that were named, then where messages were last time, then at the others.

        Those that rest are left out, unless all of them do.
        """
        at = self.parts.index(first)
        around = (*self.parts[at + 1 :], *self.parts[:at])
        with_some = [part for part in around if part.claimer.has_some]
        all_rest = all(map(self.is_resting, self.parts))
        unique = dict.fromkeys((*woken, first, *with_some, *around))
        return (part for part in unique if all_rest or not self.is_resting(part))

    # -- parts that do not answer

    def has_one_attempt(self, claimant: Claimant) -> bool:
        """Whether a request that gets no answer is not repeated: other parts may answer, or other queues wait."""
        return claimant.has_one_attempt or not self.is_alone

    def leave_alone(self, part: Part, claimant: Claimant) -> None:
        """Leave a part alone that has not answered, while others may."""
        part.claimer.rest()
        if part.calls.patience is not None:
            claimant.on_away(part)

    def is_resting(self, part: Part) -> bool:
        """Whether a part is left alone."""
        if self.is_alone or part.calls.away is None:
            return False
        return part.calls.watchers > 0 or self.port.now() < part.claimer.rests_until

    def look_at(self, part: Part) -> float:
        """When to look again at a part that rests: sooner, if somebody finds out when it answers again."""
        return self.port.now() + _LOOK_SECONDS if part.calls.watchers else part.claimer.rests_until

    def can_recover(self) -> bool:
        """Whether a claim of a part that answers again is unconfirmed, so that it may have taken messages."""
        return not self.is_alone and any(
            attempt.state is UNCONFIRMED
            for part in self.parts
            if not self.is_resting(part)
            for attempt in part.claimer.unconfirmed.attempts
        )

    def visit_limit(self, part: Part, limit: float | None) -> float | None:
        """When a request to this part is given up, because another one may answer.

        While none of them answers, the time for one request grows. It is still given up: redis-py asks one node after
        the other for the layout of the cluster, in any order, and may be waiting for the one that is frozen.
        """
        patience = part.calls.patience
        if patience is None or self.is_alone:
            return limit
        if all(one.calls.away is not None for one in self.parts):
            patience = min(part.calls.listening_seconds, patience * 2.0 ** min(part.claimer.failures, 60))
        ends_at = self.port.now() + patience
        return ends_at if limit is None else min(limit, ends_at)

    def silent_since(self) -> float | None:
        """Return since when no part has answered a claim; None if one has."""
        latest = 0.0
        for part in self.parts:
            since = part.claimer.failing_since
            if since is None:
                if not self.is_resting(part):
                    return None
                since = part.calls.away_since
            latest = max(latest, since)
        return latest

    def is_silent(self) -> bool:
        """Whether Redis has not answered the last claim, in any part."""
        return self.silent_since() is not None

    def is_given_up(self) -> bool:
        """Whether no part has answered for the whole retry budget, or none was ever reached."""
        since = self.silent_since()
        if since is None:
            return False
        has_connected = any(part.calls.has_connected for part in self.parts)
        return not has_connected or self.port.now() - since >= self.parts[0].calls.plan.budget_seconds

    def raise_if_one_is_given_up(self) -> None:
        """Raise if a part has not answered for the whole retry budget."""
        for part in self.parts:
            calls, error = part.calls, part.calls.away
            if error is not None and self.port.now() - calls.away_since >= calls.plan.budget_seconds:
                raise calls.exhausted(error, "claim", part.claimer.failures, calls.away_since) from error


class ClaimRound:
    """One claim of a consumer, from its first look at a part until it has messages or gives up."""

    __slots__ = (
        *("_acks", "_answered", "_attempt", "_claimant", "_claimer", "_count", "_deadline", "_has_waited"),
        *("_limit", "_slice_seconds", "_slice_us", "_timers"),
    )

    def __init__(
        self,
        claimer: Claimer,
        attempt: ClaimAttempt,
        claimant: Claimant,
        count: int | None,
        acks: list[PiggybackedAck] | None,
        limit: float | None,
    ) -> None:
        self._claimer = claimer
        self._attempt = attempt
        self._claimant = claimant
        self._count = count
        self._acks = acks
        self._limit = limit
        self._slice_seconds = claimer.slice_seconds * (1.0 if claimant.has_time_limit else _LOOP_SLICE)
        self._timers: dict[Part, float] = {}  # parts that count on us to wake up at this time
        self._has_waited = False

    async def run(self, wait_seconds: float) -> ClaimResult:
        """Look at the parts and wait for wake-ups, until there are messages or the time is over."""
        claimer, claimant, port = self._claimer, self._claimant, self._claimer.port
        now = port.now()
        left, deadline = wait_seconds, now + wait_seconds
        self._deadline = deadline if wait_seconds else None
        if self._limit is None and claimant.has_time_limit:
            self._limit = deadline + claimer.listening_seconds
            claimant.wait_ends_at = now + max(wait_seconds, PATIENCE_SECONDS)
        first, woken = self._attempt.part, list["Part"]()
        while not claimant.is_stopped():
            self._slice_us = int((left if left < self._slice_seconds else self._slice_seconds) * 1_000_000)
            if claimer.is_alone:
                only = await self._claim_in(first, self._limit, claimant.has_one_attempt)
                self._answered, self._has_waited = 1, True
                result = only if only.claims or only.unconfirmed else None
            else:
                result = await self._visit_all(claimer.order(first, woken), woken)
            woken = []
            if result is None and claimer.is_given_up():
                result = await self._retry_failed_parts()
            if result is not None:
                return result
            if claimer.can_recover() and not claimant.is_stopped():
                return ClaimResult(again=True)
            left = max(0.0, deadline - port.now())
            # A loop that ends when the queue is empty must not take silence for emptiness.
            is_uncertain = claimant.needs_certainty and self._answered < len(claimer.parts)
            if is_uncertain:
                claimer.raise_if_one_is_given_up()
            is_last = claimant.has_time_limit or claimant.has_one_attempt or (self._answered and not is_uncertain)
            if claimant.is_stopped() or (left <= 0 and is_last):
                return ClaimResult(unconfirmed=not self._answered)
            if self._acks and (self._claimer.port.is_cluster or all(ack.is_answered for ack in self._acks)):
                await claimant.before_wait(self._acks)
            woken = await self._wait(max(left, _LOOK_SECONDS) if is_uncertain else left)
            left = max(0.0, deadline - port.now())
        for part in woken:
            await part.claimer.notify(self._limit)
        return ClaimResult()

    async def _visit_all(self, parts: Iterable[Part], woken: Sequence[Part]) -> ClaimResult | None:
        """Look at one part after the other. Returns the first messages, None without any."""
        claimer, claimant = self._claimer, self._claimant
        self._answered = 0
        unused = dict.fromkeys(woken)  # wake-ups that we took
        for part in parts:
            if claimant.is_stopped():
                break
            unused.pop(part, None)
            began = claimer.port.now()
            result = await self._claim_in(part, claimer.visit_limit(part, self._limit), True)
            if result.unconfirmed and not claimant.is_stopped():
                claimer.leave_alone(part, claimant)
                continue
            self._answered += 1
            part.claimer.has_answered(result, claimer.port.now() - began)
            if result.claims or result.unconfirmed:
                await self._pass_on(part, unused)
                return result
        for part in unused if claimant.is_stopped() else ():
            await part.claimer.notify(self._limit)
        self._has_waited = True  # the next look follows a wait
        return None

    async def _retry_failed_parts(self) -> ClaimResult | None:
        """No part answers: claim from one that failed, for as long as a queue without partitions would."""
        claimer, claimant = self._claimer, self._claimant
        if not claimant.has_time_limit and any(part.calls.has_connected for part in claimer.parts):
            since, failures = claimer.silent_since(), max(part.claimer.failures for part in claimer.parts)
            away = ((part.calls, part.calls.away) for part in claimer.parts)
            calls, error = next((calls, error) for calls, error in away if error is not None)
            raise calls.exhausted(error, "claim", failures, since or claimer.port.now()) from error
        for part in claimer.parts:
            if part.claimer.failures and not claimant.is_stopped():
                result = await self._claim_in(part, self._limit, claimant.has_one_attempt)
                if not result.unconfirmed:
                    part.claimer.has_answered(result)
                if result.claims or result.unconfirmed:
                    return result
        return None

    async def _claim_in(self, part: Part, limit: float | None, has_one_attempt: bool) -> ClaimResult:
        """Claim in one part, until its script has nothing more to do."""
        claimant, attempt = self._claimant, self._attempt
        if attempt.state is not IDLE or attempt.part is not part:
            attempt = self._new_attempt(part)
        if not part.calls.is_prepared and not await self._prepare(part, limit):
            return ClaimResult(unconfirmed=True)
        origin = WOKEN if self._has_waited else FRESH
        if self._timers and self._timers.pop(part, None) is not None:
            origin = TIMER_OWNER
        while True:
            attempt.call = attempt.slot.next_call()
            attempt.apply("send")
            count = claimant.wanted() if self._count is None else self._count
            request = (attempt.call, count, self._slice_us, origin)
            ack = self._ack_for(part) if self._acks else None
            result = await part.claimer.exchange(
                attempt, request, claimant, ack, self._deadline, limit, has_one_attempt=has_one_attempt
            )
            if result.unconfirmed:
                return result
            attempt.apply("receive" if result.claims else "receive_nothing")
            if result.claims or not result.again or claimant.is_stopped():
                break
        if result.wake_after is not None:
            self._timers[part] = part.calls.port.now() + result.wake_after
        return result

    def _ack_for(self, part: Part) -> PiggybackedAck | None:
        """An ack that was not sent yet, to go with a claim of this part: its own, which that claim must see.

        On one server it may also be another one's. On a cluster the claim must not wait for another node.
        """
        left = None
        for ack in self._acks or ():
            if not ack.is_answered:
                if ack.calls is part.calls:
                    return ack
                left = left or ack
        return None if self._claimer.port.is_cluster else left

    async def _prepare(self, part: Part, limit: float | None) -> bool:
        """Write the state of a part; False if it does not answer, and others may."""
        port = part.calls.port
        try:
            return await part.claimer.prepare(port.now(), limit)
        except Exception as error:
            has_no_answer = port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)
            if limit is None or limit == self._limit or not has_no_answer:
                raise
            part.calls.has_failed(error)
            return False

    def _new_attempt(self, part: Part) -> ClaimAttempt:
        """Go on with an attempt in this part; the consumer knows it before anything is sent."""
        self._claimer.release(self._attempt, self._claimant)
        self._attempt = attempt = ClaimAttempt(part, part.calls.acquire_slot())
        self._claimant.on_attempt(attempt)
        return attempt

    async def _pass_on(self, taken_from: Part, unused: Iterable[Part]) -> None:
        """We leave with messages of one part: others may have woken us, or count on us for their next timer."""
        claimer, claimant = self._claimer, self._claimant
        self._timers.pop(taken_from, None)
        for part in unused:
            if part not in self._timers and not claimer.is_resting(part):
                await part.claimer.notify(claimer.visit_limit(part, self._limit))
        for part in self._timers:
            if claimer.is_resting(part):
                continue
            # With a count of 0 it takes nothing; it says that we are gone, and wakes another consumer.
            attempt = ClaimAttempt(part, part.calls.acquire_slot())
            limit = claimer.visit_limit(part, self._limit)
            attempt.call = attempt.slot.next_call()
            attempt.apply("send")
            request = (attempt.call, 0, 0, TIMER_OWNER)
            result = await part.claimer.exchange(attempt, request, claimant, limit=limit, has_one_attempt=True)
            if result.unconfirmed:
                claimer.leave_alone(part, claimant)
            else:
                attempt.apply("receive_nothing")
            claimer.release(attempt, claimant)
        self._timers.clear()

    async def _wait(self, left: float) -> list[Part]:
        """Wait until a message comes, a timer of ours ends, or a slice is over. Returns where a wake-up came."""
        claimer, claimant, port = self._claimer, self._claimant, self._claimer.port
        now = port.now()
        resting = {part: claimer.look_at(part) for part in claimer.parts if claimer.is_resting(part)}
        if len(resting) == len(claimer.parts):
            rest = min(resting.values()) - now
            await port.sleep(max(0.0, min(rest, left) if claimant.has_time_limit else rest))
            return []
        seconds = min([left, self._slice_seconds, *(end - now for end in resting.values())])
        # That of a part that rests must not keep us awake: nobody looks there.
        next_timer = min((end for part, end in self._timers.items() if part not in resting), default=None)
        punctual = next_timer is not None and next_timer - now <= seconds
        if next_timer is not None:
            seconds = min(seconds, next_timer - now)
        if seconds <= 0:
            return []
        wakeups = {part.keys.wakeup: part for part in claimer.parts if part not in resting}
        wait = partial(self._wait_for, wakeups, seconds, punctual)
        claimant.on_wait(True)
        try:
            return await Calls.until(self._limit, wait)
        except Exception as error:
            if not port.is_transient(error):
                raise
            # A claim follows, so an error costs no more than a lost wake-up. Where the wake-up keys cannot be read,
            # polling must not become a storm.
            await port.sleep(min(seconds, claimer.parts[0].calls.plan.max_delay_seconds, 0.25))
            return []
        finally:
            claimant.on_wait(False)

    async def _wait_for(self, wakeups: dict[str, Part], seconds: float, punctual: bool) -> list[Part]:
        port = self._claimer.port
        if len(wakeups) > 1:
            return [wakeups[key] for key in await port.wait_any(tuple(wakeups), seconds, punctual=punctual)]
        ((key, part),) = wakeups.items()
        return [part] if await port.wait(key, seconds, punctual=punctual) else []
