"""Claims messages in one part of a queue: chooses the script, sends it until it is answered, and reads the answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from redis_message_queue.process.identity import labelled
from redis_message_queue.protocol.calls import FEWEST_ATTEMPTS, Calls, ReplySlot, log
from redis_message_queue.protocol.consume.claim import FRESH, Claimant, ClaimResult, Request, read_reply
from redis_message_queue.protocol.consume.claim_attempt import ClaimAttempt, UnconfirmedClaims
from redis_message_queue.protocol.port import Call, Command, StateMissingError
from redis_message_queue.stored.envelope import PLAIN_FLAGS, PROCESS_BYTES
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import RetryBudgetExhaustedError

if TYPE_CHECKING:
    from redis_message_queue.protocol.consume.settle import PiggybackedAck
    from redis_message_queue.protocol.parts import Part

# An idle consumer sends a claim and a BLPOP in each slice: two commands a second. A lost wake-up costs one slice.
_SLICE_SECONDS = 1.0
_SHORTEST_ATTEMPT_SECONDS = 0.02  # with less time left than this nothing is sent any more
_FIRST_REST_SECONDS = 0.1  # how long a part that failed is left alone at first, while others answer

# The name of a process is written again long before Redis forgets it, and soon if Redis did not take it.
_NAME_KEPT_MS, _NAME_SECONDS, _NO_NAME_SECONDS = 86_400_000, 3_600.0, 60.0


class PartClaimer:
    """Claims in one part for all consumers of a queue object, and knows which claims have had no answer."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.unconfirmed = UnconfirmedClaims(calls.owns, calls.port.lock())
        self._notify = Command(script("notify"), (calls.keys.wakeup,))
        self.failing_since: float | None = None  # since when no claim has had an answer
        self.failures = 0  # claims without an answer in a row, while other parts may answer
        self.rests_until = 0.0  # this part is left alone so long for that reason
        self.has_some = False  # whether the last claim found messages here
        self._is_leased = bool(calls.options.message_visibility_timeout_seconds)
        self._can_use_short_claim = self._is_leased and not calls.options.message_ttl_seconds
        self._uses_short_claim = False  # whether to try take.lua first: the last claim met the fast path
        self._label = calls.options.consumer_name
        self._named: tuple[int, float] = (0, 0.0)  # the process whose name was written, and when to write it again
        timeout = calls.port.socket_timeout
        # Redis answers a BLPOP at the end of its time, and the socket must still be listening then.
        self.slice_seconds = _SLICE_SECONDS if timeout is None else min(_SLICE_SECONDS, 0.8 * timeout)

    def rest(self) -> None:
        """Leave this part alone for a while: it has not answered, and others may."""
        now = self._calls.port.now()
        if self.failing_since is None:
            self.failing_since = now
        self.failures += 1
        pause = min(self._calls.plan.max_delay_seconds, _FIRST_REST_SECONDS * 2.0 ** min(self.failures - 1, 60))
        self.rests_until = now + pause

    def has_answered(self, result: ClaimResult, seconds: float = 0.0) -> None:
        """Note an answer, after this long."""
        self._calls.has_answered(seconds)
        self.failing_since = None
        self.failures = 0
        self.has_some = bool(result.claims)

    async def prepare(self, started: float, limit: float | None) -> bool:
        """Write what the queue must have before its first claim; False if the time was up."""
        try:
            await self._calls.prepare(limit, drains=True)
            return True
        except RetryBudgetExhaustedError:
            if self.failing_since is None:
                self.failing_since = started
            if limit is None or self._calls.port.now() < limit - self._calls.listening_seconds or self._is_given_up():
                raise
            return False

    async def notify(self, limit: float | None = None) -> None:
        """Pass on a wake-up that was taken and will not be used. If that fails, it costs the others a slice.

        At the ``limit`` it gives up: the claim that it belongs to must be over then.
        """
        port, budget = self._calls.port, _SLICE_SECONDS
        if limit is not None:
            budget = min(budget, max(0.0, limit - port.now()))
        try:
            await self._calls.until(limit, partial(self._calls.call, self._notify, (), budget=budget))
        except Exception as error:
            if not (port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)):
                raise

    async def exchange(
        self,
        attempt: ClaimAttempt,
        request: Request,
        claimant: Claimant,
        piggyback: PiggybackedAck | None = None,
        deadline: float | None = None,
        limit: float | None = None,
        *,
        has_one_attempt: bool = False,
    ) -> ClaimResult:
        """Send one claim until it is answered, together with an ack that has no answer yet.

        After the deadline it only asks what it took in time. At the limit it ends unconfirmed, as it does after the
        first request without an answer if it ``has_one_attempt``.
        """
        calls, port, slot = self._calls, self._calls.port, attempt.slot
        started, tries, sent_at = port.now(), 0, 0.0
        nonce = slot.nonce_of(request[0])
        while True:
            sent_at, count = port.now() if sent_at else started, request[1]
            # Only with the first request: a claim that is repeated does not wait for its ack.
            ack = None if piggyback is None or tries or piggyback.settled is not None else piggyback
            try:
                if not calls.has_connected or self._label is not None:
                    await self._get_ready(slot, started, limit)
                is_short = count == 1 and request[3] == FRESH and self._uses_short_claim
                claim: Call = (slot.claim, (), request)
                ack_before = ack
                if is_short:
                    claim, ack_before = self._choose(slot, request, nonce, ack)
                # Most claims begin so early that the client itself ends in time.
                is_early = limit is None or sent_at + calls.listening_seconds <= limit
                ends_at = None if is_early and count and not tries and calls.plan.budget_seconds else limit
                if ack_before is None and ends_at is None:
                    reply = await port.call(*claim)
                else:
                    reply = await calls.until(ends_at, partial(self._send_both, ack_before, claim))
                if not is_short or isinstance(reply, bytes):
                    if ack is not None and ack_before is None:  # both were one script
                        ack.sent(b"1")
                    break
                # Nothing is there, or this is another case: then the same call goes to the script that knows them all.
                self._uses_short_claim = False
                if reply is not None or request[2]:  # or it would wait
                    continue
                break
            except Exception as error:
                tries += not isinstance(error, StateMissingError)
                if await self._gives_up(error, tries, started, claimant, limit, count == 0, has_one_attempt):
                    return ClaimResult(unconfirmed=True)
            if claimant.is_stopped() or (deadline is not None and port.now() >= deadline):
                request = (request[0], 0, 0, request[3])
        self.failing_since = calls.away = None
        self._uses_short_claim = self._uses_short_claim or self._is_fast_path(reply, request)
        result = ClaimResult() if reply is None else read_reply(reply, sent_at, nonce, self._is_leased, attempt.part)
        if not result.claims or result.dead or result.trim_error is not None or result.has_tick:
            await self._report(result, request, claimant, limit, attempt.part)
        return result

    @staticmethod
    def _choose(
        slot: ReplySlot, request: Request, nonce: bytes, ack: PiggybackedAck | None
    ) -> tuple[Call, PiggybackedAck | None]:
        """Return the short script for a claim, which may acknowledge as well, and the ack to send before it."""
        joined = None if ack is None else ack.joined_with(slot, request[0], nonce)
        return ((slot.take, (), (request[0], nonce)), ack) if joined is None else (joined, None)

    async def _report(
        self, result: ClaimResult, request: Request, claimant: Claimant, limit: float | None, part: Part
    ) -> None:
        """Tell the claimant what else an answer says, and others of a wake-up that was not used."""
        _, count, _, origin = request
        if count == 0 and not result.claims and origin != FRESH:
            await self.notify(limit)  # it took the wake-up, and did not claim for it
        if result.dead or result.trim_error is not None:
            await claimant.on_dead(result)
        if result.has_tick:
            await claimant.on_tick(limit, part)
            result.again = True  # its message may be the next

    async def _get_ready(self, slot: ReplySlot, started: float, limit: float | None) -> None:
        """Connect for the first time, and write what this process is called."""
        if not self._calls.has_connected:
            await self._calls.connect(started)
        if self._label is not None:
            await self._write_name(self._label, slot, limit)

    def _is_fast_path(self, reply: Any, request: Request) -> bool:
        """Whether take.lua can do the next claim. Not for a consumer that was woken: it usually takes the only one."""
        if not self._can_use_short_claim or request[1] != 1 or request[3] != FRESH:
            return False
        return isinstance(reply, bytes) and reply[0] == PLAIN_FLAGS

    async def _send_both(self, ack: PiggybackedAck | None, claim: Call) -> Any:
        """Send a claim, in one round trip with the ack before it."""
        if ack is None:
            return await self._calls.port.call(*claim)
        settled, reply = await self._calls.port.call_both(ack.call, claim)
        ack.sent(settled)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _write_state(self, limit: float | None, has_one_attempt: bool) -> bool:
        """Write the state that a claim did not find; False if Redis does not answer, and there is one attempt."""
        calls, self._named = self._calls, (0, 0.0)
        try:
            await calls.write_state(limit, drains=True)
            return True
        except Exception as error:
            has_no_answer = calls.port.is_transient(error) or isinstance(error, RetryBudgetExhaustedError)
            if not (has_one_attempt and has_no_answer and calls.plan.budget_seconds > 0):
                raise
            calls.has_failed(error)
            return False

    async def _write_name(self, label: str, slot: ReplySlot, limit: float | None) -> None:
        """Write what this process is called, now and then, if that works: only what people read depends on it."""
        calls, port = self._calls, self._calls.port
        process, due = self._named
        if process == slot.process and port.now() < due:
            return
        self._named = (slot.process, port.now() + _NAME_SECONDS)  # first, so that other threads do not write it too
        key, name = calls.keys.consumer_name(slot.holder[:PROCESS_BYTES].hex()), labelled(label, slot.holder)
        try:
            write = (("PSETEX", key, _NAME_KEPT_MS, name),)
            (answer,) = await calls.until(limit, lambda: port.pipeline(key, write))
        except Exception as error:
            answer = error
        if isinstance(answer, Exception):
            self._named = (slot.process, port.now() + _NO_NAME_SECONDS)
            log.debug("%s: the name %s was not written: %s", calls.keys.prefix, name, type(answer).__name__)

    async def _gives_up(
        self,
        error: Exception,
        tries: int,
        started: float,
        claimant: Claimant,
        limit: float | None,
        is_question: bool,
        has_one_attempt: bool,
    ) -> bool:
        """Rest before the next request, or raise; True if the claim ends unconfirmed instead."""
        calls, port = self._calls, self._calls.port
        if isinstance(error, StateMissingError):
            return not await self._write_state(limit, has_one_attempt)
        is_transient, budget = port.is_transient(error), None
        retries = is_transient and calls.plan.budget_seconds > 0
        if retries:
            self.failing_since = started if self.failing_since is None else self.failing_since
            await claimant.on_retry(error, tries)
        if (retries and has_one_attempt) or (is_question and is_transient and claimant.is_stopped()):
            calls.has_failed(error)
            return True
        if retries and limit is not None:
            left, waits_for = limit - port.now(), claimant.wait_ends_at
            is_over = waits_for is not None and tries >= FEWEST_ATTEMPTS and port.now() >= waits_for
            if left < _SHORTEST_ATTEMPT_SECONDS or is_over:
                self._log_unconfirmed(error, tries, started)
                return True
            # The last attempt follows when the wait is over. A drain has no wait, and half of the time that is left is
            # the longest rest, so that there is an attempt shortly before its end.
            rest = left / 2 if waits_for is None else max(waits_for - port.now(), calls.plan.max_delay_seconds / 100)
            budget = port.now() - started + min(rest, left / 2)
        await calls.rest_before_retry(error, "claim", tries, started, budget, claimant.is_stopped)
        return False

    def _log_unconfirmed(self, error: Exception, tries: int, started: float) -> None:
        """Log that the time of a claim is over and Redis out of reach, or raise if that has lasted for too long."""
        calls = self._calls
        if self._is_given_up():
            raise calls.exhausted(error, "claim", tries, self.failing_since or started) from error
        log.warning(
            "%s: claim got no reply in time (%s, redis at %s); the next claim or a drain recovers what it took",
            *(calls.keys.prefix, type(error).__name__, calls.port.address),
            extra={"queue": calls.keys.prefix, "address": calls.port.address},
        )

    def _is_given_up(self) -> bool:
        """Whether no claim has had an answer for the whole retry budget, or Redis was never reached at all."""
        calls = self._calls
        if not calls.has_connected:
            return True
        since = self.failing_since
        return since is not None and calls.port.now() - since >= calls.plan.budget_seconds
