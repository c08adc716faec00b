"""The messages of a loop: claimed ahead of the handlers, and requeued at the end if no handler has begun them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from signal import Signals
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.calls import LoopCancellations
from redis_message_queue.protocol.consume.claim import Claim
from redis_message_queue.protocol.consume.claim_attempt import HANDED_OVER
from redis_message_queue.protocol.consume.consumer import ClaimedPayload
from redis_message_queue.protocol.consume.delivery import Ending
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.protocol.loop.ack_buffer import AckBuffer
from redis_message_queue.protocol.loop.handler_times import HandlerTimes
from redis_message_queue.protocol.loop.late_settlements import LateSettlements
from redis_message_queue.protocol.loop.loop_consumer import LoopConsumer
from redis_message_queue.protocol.loop.prefetch_policy import PrefetchPolicy
from redis_message_queue.protocol.loop.run_options import RunOptions, RunSummary
from redis_message_queue.protocol.loop.turn import Turn
from redis_message_queue.protocol.loop.worker_entry import WorkerEntry
from redis_message_queue.protocol.port import BackgroundTask, Pause
from redis_message_queue.values.errors import CleanupFailedError
from redis_message_queue.values.plain_values import class_name

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol

_WAIT_SECONDS = 30.0  # a loop waits until it is stopped, and emits once in that time that nothing came
_LONGEST_NAP_SECONDS = 0.05  # between two looks at what another worker does
# How long a message that was delivered this often is handled while nothing else begins: long enough to see it crash
# the process, and not forever if it hangs.
_ALONE_SECONDS = 10.0
_TURN_SECONDS = 0.05  # a claim that takes longer waits for messages, and acks should not wait with it


@dataclass(slots=True, eq=False)
class WorkItem:
    """What a handler is called with at once: one message, or a batch."""

    claims: Sequence[Claim]
    messages: Sequence[ReceivedMessage[Any]]
    begun: bool = False  # set by the shell, as its last step before the handler
    taken_at: float = 0.0  # when a worker took it
    expires_at: float = math.inf  # when the first of its leases ends, unless that is renewed
    alone_until: float = 0.0  # until then nothing else begins beside it


class Prefetcher:
    """The messages of one loop, whichever of its threads or tasks works on them.

    A handled message is acknowledged with the next claim. If none follows within half a second, a helper beside the
    handlers acknowledges it. Without heartbeats the helper also requeues what was claimed ahead and will not be begun
    before its lease ends.

    A message that was delivered before may have crashed its consumer. It is claimed alone: nothing else that nobody
    has begun is held beside it, so that a crash costs no other message a delivery.
    """

    def __init__(self, queue: QueueProtocol, options: RunOptions[Any]) -> None:
        lease = queue.store.options.message_visibility_timeout_seconds
        self._interval = options.renewal_interval(queue.options, lease)
        self._queue = queue
        self._options = options
        self._policy = PrefetchPolicy(
            *(queue.options.name, options.batch_size or options.prefetch or options.concurrency, options.concurrency),
            lease=lease,
            has_heartbeat=self._interval is not None,
            in_batches=options.batch_size is not None,
        )
        self._consumer = LoopConsumer(queue, self)
        self.holding, self._delivery = self._consumer.holding, self._consumer.delivery
        if options.wait_for_retries:
            self._delivery.retries = {}
        self._lease = self.holding.lease_for([])
        self._entry = WorkerEntry(queue, options.concurrency, lambda: self._lease.over or self.holding.is_forked)
        self._times = HandlerTimes(queue.port.now) if queue.store.options.journal else None
        self._delivery.times = self._times
        self._lock = queue.port.lock()  # of the work items, of the acks, and of the sums
        self.summary = RunSummary()
        self.late = LateSettlements(queue, self._lock, lambda: self._lease.over, self._meet)
        self.acks = AckBuffer(self._consumer, self.late, self._policy.flush_seconds, self._lock, self.summary)
        self._times_handlers = queue.options.max_processing_seconds is not None
        self._filling: list[tuple[Claim, ReceivedMessage[Any]]] = []  # the next batch
        # What handlers are called with. A worker takes one and steps to the next. They leave this list when they begin,
        # so that a Ctrl-C at any moment finds them in one place at least.
        self._work_items: list[WorkItem] = []
        self._next = 0
        self.turn = Turn(queue.port)
        self.claims_for_idle = options.prefetch is None and options.batch_size is None
        self._most: int | None = None  # for how many of them, if that is limited
        self._redelivered: set[WorkItem] = set()  # those at hand whose messages were delivered before
        self._last_taken_at = 0.0
        self._requeueing = self._requeued = 0  # how often messages are being requeued right now, and have been
        self._found_nothing = False  # and ends for that reason
        self._helper: BackgroundTask | None = None
        self._trouble: Exception | None = None  # what was met beside the handlers

    def open(self) -> None:
        """Start; the heartbeat lasts as long as the loop."""
        self._queue.store.capabilities.require("batches")
        self._lease.stays_open = True
        self.holding.start_heartbeat(self._lease, self._interval)
        self._entry.begin()

    def stop(self, signal: Signals | None = None) -> None:
        """Start no new work: an error ends all workers, or a signal."""
        self.summary.stopped_by = self.summary.stopped_by or signal
        self._consumer.is_ended = True
        self.turn.wake(self._options.concurrency)

    def _meet(self, trouble: Exception) -> None:
        """End the loop with what was met beside the handlers."""
        self._trouble = self._trouble or trouble
        self.stop()

    # -- beside the handlers

    async def _help(self, pause: Pause) -> None:
        """Do what must not wait until a handler ends, in a separate thread or task."""
        # As in `Heartbeat.beat`: nobody else can stop it after a Ctrl-C between its start and the assignment.
        while not await pause(self._next_look()) and not self._lease.over:
            if self.holding.is_forked:
                return
            cancellations = LoopCancellations(self._queue.gate.give_up_at)
            try:
                await self._requeue_unreachable()
                await self.acks.flush_late(cancellations)
            except Exception as error:
                self._meet(error)
                return
            if cancellations:
                return

    def _next_look(self) -> float:
        if not self.acks:
            return self._policy.look_seconds
        return min(self._policy.look_seconds, max(0.01, self.acks.due_in))

    async def _requeue_unreachable(self) -> None:
        """Without heartbeats: requeue what no handler will start before its lease expires, as if never delivered."""
        if not self._policy.counts_time or self._next == len(self._work_items):
            return
        with self._lock:
            running_seconds = self._queue.port.now() - self._last_taken_at
            left = [self._left(work_item) for work_item in self._work_items[self._next :]]
            reachable = self._next + self._policy.reachable(left, running_seconds)
            unreachable = self._work_items[reachable:]
            del self._work_items[reachable:]
            self._requeueing += bool(unreachable)
        self._policy.warn_if_too_slow(running_seconds)
        if unreachable:
            await self._requeue_items(unreachable)

    def _left(self, work_item: WorkItem) -> float:
        """How long all of its leases last at least."""
        return min(map(self._lease.left, work_item.claims))

    async def _requeue_items(self, work_items: Sequence[WorkItem]) -> None:
        """Requeue items as if never claimed. The caller has taken them out, and counted them in `_requeueing`."""
        self._redelivered.difference_update(work_items)
        try:
            await self._requeue_unbegun([claim for work_item in work_items for claim in work_item.claims])
        finally:
            with self._lock:
                self._requeueing -= 1
                self._requeued += 1

    async def _requeue_unbegun(self, claims: Sequence[Claim], *, counts: bool = False) -> None:
        """Requeue what no handler has begun, as if it had never been claimed."""
        self._let_go(claims)
        await self._requeue(claims, None, counts=counts)

    async def _requeue(self, claims: Sequence[Claim], error: Exception | None, *, counts: bool) -> None:
        """Requeue messages, in each part by itself; without an ``error`` as if never claimed."""
        for part, _, some in self._queue.store.parts.groups(claims):
            await self.late.settle(part, self._requeue_in_one(some, error, counts))

    async def _requeue_in_one(self, claims: Sequence[Claim], error: Exception | None, counts: bool) -> None:
        is_fresh = error is None
        requeued = await self._delivery.requeue(claims, error, forgiven=is_fresh, begun=not is_fresh)
        with self._lock:
            self._requeued += 1
            self.summary.requeued += (requeued or 0) if counts else 0
            self.summary.unsettled += len(claims) if requeued is None else 0

    def _let_go(self, claims: Iterable[Claim]) -> None:
        """Stop renewing their leases."""
        self._lease.release(claims)
        self.holding.end_work_on(claims)

    # -- taking

    def ready(self) -> WorkItem | None:
        """Return prefetched work, without a request; there may be any number of callers."""
        if self._next == len(self._work_items) or self._consumer.is_stopped():
            return None
        with self._lock:
            if self._next == len(self._work_items):
                return None
            work_item = self._work_items[self._next]
            now = self._queue.port.now()
            if self._is_short_of_time(work_item, now):
                return None  # `next_item` requeues it
            self._next += 1
            work_item.taken_at = self._last_taken_at = now
            is_waited_for = self._policy.counts_time and self._next < len(self._work_items)
            if self._helper is None and (self.acks or is_waited_for):
                self._helper = self._queue.port.spawn(self._help)
        if self._times_handlers:
            self._lease.begin(work_item.claims)
        if self._times is not None:
            self._times.started(work_item.claims, work_item.taken_at)
        return work_item

    def _is_short_of_time(self, work_item: WorkItem, now: float) -> bool:
        """Whether its lease is lost or about to end: no handler starts with such a message."""
        if now + self._policy.reserve < work_item.expires_at and not self._lease.has_losses:
            return False
        return self._left(work_item) <= self._policy.reserve

    async def next_item(self) -> WorkItem | None:
        """Return what to work on next; None when the loop should end. One idle worker claims for all of them."""
        if self._options.concurrency == 1:
            return await self.find_item()
        while not self._consumer.is_stopped():
            if self.turn.begin():
                try:
                    # A message that was handled during the claim may have let others of its tenant wait behind it.
                    if (work_item := await self.find_item()) is None and not self.acks:
                        self.turn.dismiss()
                    return work_item
                finally:
                    self.end_turn()
            dismissed = self.turn.dismissed
            await self.wait_for_turn()
            if dismissed != self.turn.dismissed and not self.acks:
                return None
            if (work_item := self.ready()) is not None:
                self.turn.pass_on(self.ready_count)
                return work_item
        return None

    async def wait_for_turn(self) -> None:
        """Wait until another worker has claimed. Acks do not wait with it for messages."""
        if not await self.turn.wait(_TURN_SECONDS):
            await self.acks.flush()
            await self.turn.wait(_WAIT_SECONDS)

    def end_turn(self) -> None:
        """Give back the turn; if the loop is stopped, all others shall know."""
        self.turn.end(self.ready_count)
        if self._consumer.is_stopped():
            self.turn.wake(self._options.concurrency)

    @property
    def ready_count(self) -> int:
        """How many items no worker has taken."""
        return len(self._work_items) - self._next

    async def find_item(self, *, waits: bool = True, most: int | None = None) -> WorkItem | None:
        """Return what to work on next; None when the loop should end. Only the worker that has the turn calls it.

        Without ``waits``, it asks Redis once and returns None if there is nothing to begin now. Without a ``prefetch``
        it claims for ``most`` of the idle handlers.
        """
        self._most = most
        until_empty, nap = self._options.until_empty, 0.001
        self._consumer.has_one_attempt = not waits
        self._consumer.needs_certainty = until_empty and waits
        longest = max(_WAIT_SECONDS, self._queue.store.options.message_wait_interval_seconds)
        while not self._consumer.is_stopped():
            if self._filling:
                await self._fill_batch()
            if self._next < len(self._work_items):
                if await self._requeue_lost():
                    continue
                if (work_item := self.ready()) is not None:  # another worker may have been quicker
                    return work_item
            elif self._is_one_alone():
                if not waits:
                    return None
                await self._queue.port.sleep(nap)
                nap = min(_LONGEST_NAP_SECONDS, 2 * nap)
            else:
                changes, began = self._own_changes(), self._queue.port.now()
                wait = min(longest, self._next_retry_in(began)) if until_empty else longest
                size = None if self.claims_for_idle else self.claim_size()
                if await self._refill(size, wait if waits else 0.0):
                    continue
                if not waits:
                    return None
                if not until_empty:
                    continue
                if self._is_retry_left(began):
                    continue
                if changes is not None and changes == self._own_changes():
                    self._found_nothing = True
                    return None
                await self._queue.port.sleep(nap)
                nap = min(_LONGEST_NAP_SECONDS, 2 * nap)
        return None

    def _own_changes(self) -> tuple[int, int] | None:
        """Compare before and after a claim: if this differs or is None, the claim has not seen all that we changed.

        What is requeued, and what waited behind a message that is acknowledged now, can be claimed after that.
        """
        with self._lock:
            acks = self.acks.sent_alone
            return None if self._requeueing or self.late or acks is None else (self._requeued, acks)

    async def put_back(self, work_item: WorkItem) -> None:
        """Requeue an item that was taken and not begun, and what was claimed with it: others can start it now."""
        with self._lock:
            unbegun = [work_item, *self._work_items[self._next :]]
            self._work_items = [one for one in self._work_items[: self._next] if one is not work_item]
            self._next = len(self._work_items)
            self._requeueing += 1
        await self._requeue_items(unbegun)
        self._delivery.raise_if_cancelled()

    def live_summary(self) -> RunSummary:
        """What the loop has done so far."""
        return replace(self.summary, refused_at_claim=self._consumer.refused_at_claim)

    @property
    def is_stopped(self) -> bool:
        """Whether no handler should start any more."""
        return self._consumer.is_stopped()

    def _next_retry_in(self, now: float) -> float:
        """How long to wait for the next of this loop's own retries; 0 if there are none, or nobody asked for that."""
        if not self._delivery.retries:
            return 0.0
        with self._lock:
            return max(0.0, min(self._delivery.retries.values(), default=now) - now)

    def _is_retry_left(self, began: float) -> bool:
        """Whether a retry is still to come. One that was due before an empty claim began is another consumer's now."""
        if not self._delivery.retries:
            return False
        with self._lock:
            for message_id, due in list(self._delivery.retries.items()):
                if due < began:
                    del self._delivery.retries[message_id]
            return bool(self._delivery.retries)

    def claim_size(self) -> int:
        """How many messages a claim may take now: without a ``prefetch`` one for each idle handler."""
        size = self._policy.claim_size(is_careful=bool(self._redelivered))
        return min(size, self._most or size, self.turn.idle_workers or 1) if self.claims_for_idle else size

    def _is_one_alone(self) -> bool:
        """Whether a message is at hand that may crash the process, so that nothing else should begin."""
        if not self._redelivered:
            return False
        now = self._queue.port.now()
        return any(now < work_item.alone_until for work_item in list(self._redelivered))

    async def _requeue_lost(self) -> bool:
        """Requeue what waits with a lease that is lost or about to end. Returns whether there was any."""
        with self._lock:
            waiting, now = self._work_items[self._next :], self._queue.port.now()
            if not waiting or not self._is_short_of_time(waiting[0], now):
                return False
            lost = [work_item for work_item in waiting if self._is_short_of_time(work_item, now)]
            dropped = set(lost)
            self._work_items[self._next :] = [work_item for work_item in waiting if work_item not in dropped]
            self._requeueing += 1
        text = "and %d others are requeued and not started: their leases have ended or are about to"
        self._queue.emitter.log(WARNING, lost[0].claims[0], text, len(lost) - 1)
        await self._requeue_items(lost)
        self._delivery.raise_if_cancelled()
        return True

    async def _fill_batch(self) -> None:
        """Claim until the batch is full or its time is up, then add it to the work."""
        port = self._queue.port
        deadline = port.now() + (self._options.batch_seconds or 0.0)
        while not self._consumer.is_stopped():
            wanted = self.claim_size() - len(self._filling)
            # A message that came again has a new lease, so the first one need not be the one that ends first.
            shortest = min(self._lease.left(claim) for claim, _ in self._filling)
            left = min(deadline - port.now(), self._policy.longest_wait(shortest))
            if wanted <= 0 or left <= 0 or not await self._refill(wanted, left):
                break
        if self._consumer.is_stopped():
            return
        await self._drop_lost_from_batch()
        if self._filling:
            claims, messages = zip(*self._filling, strict=True)
            self._enqueue([WorkItem(claims, messages)])
            self._filling = []
        self._delivery.raise_if_cancelled()

    async def _drop_lost_from_batch(self) -> None:
        lost = [claim for claim, _ in self._filling if self._lease.left(claim) <= self._policy.reserve]
        if lost:
            await self._requeue_unbegun(lost)
            dropped = set(lost)
            self._filling = [(claim, message) for claim, message in self._filling if claim not in dropped]

    # -- claiming

    async def _refill(self, count: int | None, wait_seconds: float) -> bool:
        """Claim more, and send the acks along. Returns whether any message came."""
        acks = self.acks.attach()
        try:
            taken = await self._consumer.claim(count, wait_seconds, acks)
            if self._delivery.retries:
                with self._lock:
                    for claim, _ in taken:
                        self._delivery.retries.pop(claim.id, None)
            if taken:
                self._entry.claimed_at = taken[0][0].claimed_at
                self._keep(await self._choose(taken))
        finally:
            if acks:
                await self.acks.confirm(acks, self._delivery.cancellations)
        self._delivery.raise_if_cancelled()
        return bool(taken)

    async def _choose(self, taken: list[ClaimedPayload]) -> list[ClaimedPayload]:
        """Keep new messages, or one that was delivered before, alone. The rest is requeued."""
        redelivered = any((claim.delivery_count or 0) > 1 for claim, _ in taken)
        self._policy.after_claim(redelivered=redelivered)
        if not redelivered:
            return taken
        taken = self._without_what_is_held(taken)
        first = next((place for place, (claim, _) in enumerate(taken) if _was_delivered_before(claim)), len(taken))
        # Up to the first of them, or that one if nothing else waits here.
        kept = first or int(not self._filling)
        surplus = [claim for claim, _ in taken[kept:]]
        if surplus:
            await self._requeue(surplus, None, counts=False)
        if first == 0:
            await self.acks.flush()  # what is handled must not be handled again if this one crashes the process
        return taken[:kept]

    def _without_what_is_held(self, taken: list[ClaimedPayload]) -> list[ClaimedPayload]:
        """A message that this loop still holds comes again if its lease has expired: it continues with the new one."""
        held = {claim.id: claim for claim in self._lease.claims}
        others = []
        for claim, payload in taken:
            ours = held.get(claim.id)
            if ours is None or self._is_hung(ours):
                others.append((claim, payload))
                continue
            ours.continue_as(claim)
            self._lease.renewed([ours], claim.claimed_at)
            text = (
                "lost its lease while this loop still had it; it continues with a new one. Raise "
                "visibility_timeout_seconds or leave out renew_leases=False"
            )
            self._queue.emitter.log(WARNING, claim, text)
        return others

    def _is_hung(self, claim: Claim) -> bool:
        """Whether its handler has had its time: then the message is for another worker."""
        limit = self._queue.options.max_processing_seconds
        return limit is not None and self._lease.worked_on(claim) >= limit

    def _keep(self, taken: Sequence[ClaimedPayload]) -> None:
        """Hold the messages and add them to the work. Until the last step, Ctrl-C leaves a recoverable attempt."""
        self._lease.add([claim for claim, _ in taken], waiting=True)
        self.holding.begin_work_on([claim for claim, _ in taken])
        attempt = self._consumer.offer()
        messages = [(claim, self._consumer.received(claim, payload)) for claim, payload in taken]
        if self._options.batch_size is not None:
            self._filling += messages
        elif messages:
            self._enqueue([WorkItem((claim,), (message,)) for claim, message in messages])
        attempt.state = HANDED_OVER
        self._consumer.attempt = None

    def _enqueue(self, work_items: Sequence[WorkItem]) -> None:
        """Add work after what other workers have taken and not yet begun."""
        first = work_items[0]
        if _was_delivered_before(first.claims[0]):  # then it is the only one
            first.alone_until = self._alone_until(first.claims[0].delivery_count or 0)
            self._redelivered.add(first)
        if (lease := self._policy.lease) is not None:
            for work_item in work_items:
                work_item.expires_at = min(claim.claimed_at for claim in work_item.claims) + lease
        with self._lock:
            taken = [work_item for work_item in self._work_items[: self._next] if not work_item.begun]
            self._work_items = [*taken, *self._work_items[self._next :], *work_items]
            self._next = len(taken)

    def _alone_until(self, count: int) -> float:
        """Until when nothing else may start. A second delivery may start beside others: it often follows an outage."""
        limit = self._queue.store.options.max_delivery_count
        if count == 2 and (limit is None or limit > 2):
            return 0.0
        return self._queue.port.now() + _ALONE_SECONDS * (count - 1)

    # -- settling

    def done(self, work_item: WorkItem) -> None:
        """The handler has returned: acknowledge its messages soon."""
        claims = self._not_completed(work_item) if self._consumer.completed else work_item.claims
        if self._times_handlers:
            self._lease.finish(claims)
        if self._times is not None:
            self._times.ended(claims)
        is_urgent = False
        if self._policy.counts_time:
            now = self._queue.port.now()
            if now - work_item.taken_at > self._policy.notable_seconds:
                self._policy.handled_in(now - work_item.taken_at)
            is_urgent = (
                work_item.expires_at - now < 2 * self._policy.flush_seconds
            )  # its lease ends before the next claim
        self.acks.add(claims, is_urgent=is_urgent)
        if self._redelivered:
            self._redelivered.discard(work_item)

    def _not_completed(self, work_item: WorkItem) -> list[Claim]:
        """Its messages without those that the handler has completed itself."""
        completed = self._consumer.completed.intersection(work_item.claims)
        with self._lock:
            self._consumer.completed -= completed
            self.summary.handled += len(completed)
            self.summary.attempts += len(completed)
        return [claim for claim in work_item.claims if claim not in completed]

    async def failed(self, work_item: WorkItem, error: Exception) -> None:
        """The handler raised. One message takes the failure path; a batch without a policy is requeued as it was.

        An outcome that a handler raises for a batch is that of each message in it.
        """
        if self.holding.is_forked:
            return
        claims = self._not_completed(work_item)
        with self._lock:
            self.summary.attempts += len(claims)
        if self._policy.counts_time:
            self._policy.handled_in(self._queue.port.now() - work_item.taken_at)
        self._let_go(work_item.claims)
        takes_each = self._delivery.can_apply(error) or self._queue.options.retry_policy is not None
        try:
            if self._options.batch_size is None or takes_each:
                for claim in claims:
                    await self.late.settle(claim.part, self._fail(claim, error))
            elif claims:
                await self._requeue_failed_batch(claims, error)
        except CleanupFailedError as refused:
            self._meet(refused)  # it tells more than what the claim of another worker meets for the same reason
            raise
        self._redelivered.discard(work_item)
        self._delivery.raise_if_cancelled()

    async def _fail(self, claim: Claim, error: Exception) -> None:
        """End a delivery whose handler raised, and count it."""
        ending, summary = await self._delivery.handler_raised(claim, error), self.summary
        with self._lock:
            summary.failed += ending is Ending.FAILED
            summary.dead_lettered += ending is Ending.DEAD_LETTERED
            summary.retried += ending is Ending.RETRIED
            summary.discarded += ending is Ending.DISCARDED
            summary.unsettled += ending is Ending.UNCONFIRMED

    async def _requeue_failed_batch(self, claims: Sequence[Claim], error: Exception) -> None:
        text = "and the %d others of its batch are requeued: their handler raised %s"
        described = (len(claims) - 1, class_name(error))
        self._queue.emitter.log(WARNING, claims[0], text, *described, handler_error=error)
        if self._times is not None:
            self._times.forget(claims)
        self._policy.after_claim(redelivered=True)  # they come next, each alone
        await self._requeue(claims, error, counts=True)

    def leave_alone(self, work_item: WorkItem) -> None:
        """Whatever ended the handler was not an `Exception`: its messages are left to their leases."""
        self._let_go(work_item.claims)
        if self._times is not None:
            self._times.forget(work_item.claims)
        self._redelivered.discard(work_item)

    async def close(self) -> None:
        """Acknowledge what is handled, and requeue what no handler has begun, as if it had never been claimed."""
        if self.holding.is_forked:
            return
        self._consumer.release()
        self.summary.refused_at_claim = self._consumer.refused_at_claim
        self._queue.store.claimer.leave_to_others(self._consumer)
        if self._helper is not None:
            await self._delivery.undisturbed(self._helper.end())
        try:
            await self.acks.flush()
        finally:
            lined_up = [claim for work_item in self._work_items if not work_item.begun for claim in work_item.claims]
            unbegun = list(dict.fromkeys((*lined_up, *(claim for claim, _ in self._filling))))
            self._filling, self._work_items, self._next = [], [], 0
            if unbegun:
                await self._requeue_unbegun(unbegun, counts=True)
            await self._delivery.undisturbed(self.late.close())
            self.holding.end_lease()
            await self._delivery.undisturbed(self.holding.stop_heartbeat())
            await self._delivery.undisturbed(self._entry.end())
        self._delivery.raise_if_cancelled()
        if self._trouble is not None:
            raise self._trouble
        if self._found_nothing and self._queue.store.options.ordered_tenants:
            self.summary.left_behind = await self._queue.count_behind_retries()


def _was_delivered_before(claim: Claim) -> bool:
    return (claim.delivery_count or 0) > 1
