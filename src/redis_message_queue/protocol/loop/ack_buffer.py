"""Acks of handled messages, which wait for the next claim so that both take one round trip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.settle import PiggybackedAck
from redis_message_queue.protocol.loop.late_settlements import LateSettlements
from redis_message_queue.protocol.loop.loop_consumer import LoopConsumer
from redis_message_queue.protocol.loop.run_options import RunSummary
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.values.errors import CleanupFailedError


class AckBuffer:
    """The messages of one loop that are handled and not yet acknowledged.

    Their leases are renewed until their acks are sent, so a crash repeats them and loses nothing. The path of an ack:

    1. `add` keeps the messages of a handler that has returned.
    2. `attach` makes one numbered ack for the messages of each part.
    3. `Consumer.claim` takes the acks along: the request to a part also has its ack, and notes the answer there.
    4. `confirm` counts and reports the answers. An ack without an answer is sent alone, under its old number; if Redis
       does not answer that either, the rest happens beside the loop (`LateSettlements`).
    """

    def __init__(
        self,
        consumer: LoopConsumer,
        late: LateSettlements,
        flush_seconds: float,
        lock: AbstractContextManager[Any],
        summary: RunSummary,
    ) -> None:
        self._consumer = consumer
        self._late = late
        self._queue = consumer.queue
        self._flush_seconds = flush_seconds
        self._lock = lock
        self._summary = summary
        self._claims: list[Claim] = []
        self._since = 0.0  # when the first of them was handled
        self._on_their_way = 0  # acks of single partitions that were attached, and whose answer is not known
        self._sent_alone = 0  # those that no claim took along before itself

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, claims: Sequence[Claim], *, is_urgent: bool) -> None:
        """Acknowledge these soon; if it is urgent, before the next handler begins."""
        with self._lock:
            if not self._claims:
                self._since = self._queue.port.now()
            if is_urgent:
                self._since = -math.inf
            self._claims += claims
            self._summary.attempts += len(claims)

    @property
    def is_late(self) -> bool:
        """Whether they have waited too long for a claim."""
        if not self._claims:
            return False
        waited = self._queue.port.now() - self._since
        is_due = waited >= self._flush_seconds or len(self._claims) >= MAX_MESSAGES
        return is_due and not self._consumer.holding.is_forked

    @property
    def due_in(self) -> float:
        """How long they may still wait for a claim."""
        return self._since + self._flush_seconds - self._queue.port.now()

    @property
    def sent_alone(self) -> int | None:
        """How many acks no claim took along before itself; None while some are on their way."""
        with self._lock:
            return None if self._on_their_way else self._sent_alone

    def attach(self) -> list[PiggybackedAck]:
        """Acks for all of them, or for the first thousand: one for each part."""
        with self._lock:
            claims, self._claims = self._claims[:MAX_MESSAGES], self._claims[MAX_MESSAGES:]
            self._on_their_way += bool(claims)
        if not claims:
            return []
        # First, so that a heartbeat in between does not take them for lost.
        self._consumer.holding.lease_for([]).release(claims)
        acks = self._consumer.delivery.attach(claims)
        with self._lock:
            self._on_their_way += len(acks) - 1
        return acks

    async def flush(self) -> None:
        """Acknowledge all of them now; a cancellation is raised when that is done."""
        if self._consumer.holding.is_forked:
            return
        delivery = self._consumer.delivery
        while acks := self.attach():
            await self.confirm(acks, delivery.cancellations)
            delivery.raise_if_cancelled()

    async def flush_late(self, cancellations: list[BaseException]) -> None:
        """Acknowledge what has waited too long, beside the handlers."""
        while self.is_late and (acks := self.attach()):
            await self.confirm(acks, cancellations)

    async def confirm(self, acks: list[PiggybackedAck], cancellations: list[BaseException]) -> None:
        """Report what came of the acks, once: the list is empty then. Those that have no answer are sent alone."""
        done = acks.copy()
        acks.clear()
        for ack in done:
            self._consumer.holding.end_work_on(ack.claims)
        refusals: list[CleanupFailedError] = []
        for ack in done:
            try:
                await self._late.settle(ack.part, self._deliver(ack, cancellations))
            except CleanupFailedError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    async def _deliver(self, ack: PiggybackedAck, cancellations: list[BaseException]) -> None:
        delivery, is_alone = self._consumer.delivery, not ack.was_seen
        try:
            settled = await ack.send_alone(cancellations)
        except Exception as trouble:
            if not delivery.has_no_answer(trouble):
                raise await delivery.not_acknowledged(ack.claims, trouble) from trouble
            with self._lock:
                self._summary.unsettled += len(ack.claims)
            await delivery.leave_to_leases(ack.claims, trouble)
            return
        finally:
            ack.close()
            with self._lock:
                self._on_their_way -= 1
                self._sent_alone += is_alone
        with self._lock:
            self._summary.handled += sum(settled.owned)
        await delivery.acknowledged(ack.claims, settled)
