"""The methods for operators: the asyncio queue has them as they are, the blocking one runs them to their end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.operate.cancel import CancelOutcome
from redis_message_queue.protocol.operate.purge import PurgeTarget
from redis_message_queue.protocol.operate.reader import PeekSource, RecordSource
from redis_message_queue.protocol.schedules import MissedTicks
from redis_message_queue.values.messages import (
    ConnectedWorker,
    Explanation,
    MessageRecord,
    QueueStats,
    RedriveSummary,
    Schedule,
    TraceEntry,
)

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class OperatorMethods(Generic[M]):
    """The methods for operators, safe while others work on the queue."""

    _protocol: QueueProtocol

    async def stats(self, *, oldest: bool = True) -> QueueStats:
        """Count the messages of the queue, by where they are.

        Args:
            oldest: Also find out how old the oldest waiting message is. This looks at the next message of every
                tenant, 1,000 tenants per script. With False, one script is enough, and ``oldest_pending_seconds`` is
                None.

        Raises:
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        return await self._protocol.operator.stats(oldest)

    async def peek(
        self, count: int = 10, *, source: PeekSource = "pending", tenant: str | None = None
    ) -> list[MessageRecord]:
        """Read messages without claiming them.

        Returns the next messages of ``pending`` in the order of their delivery, those of ``processing`` whose lease
        ends first, those of ``delayed`` that are due first, and the newest of the other lists.

        Args:
            count: How many messages to read at most.
            source: Where to look: ``pending``, ``processing``, ``delayed``, ``completed``, ``failed`` or
                ``dead_letters``.
            tenant: Look only at this tenant's queue (``pending`` only).

        Raises:
            ConfigurationError: An argument cannot be used.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.peek(count, source, tenant)

    async def records(self, source: RecordSource = "dead_letters", *, max_records: int = 100) -> list[MessageRecord]:
        """Read what is known about messages that have left the queue, newest first.

        Args:
            source: ``dead_letters``, ``failed`` or ``completed``.
            max_records: How many records to read at most.

        Raises:
            ConfigurationError: An argument cannot be used.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.records(source, max_records)

    async def get(self, message_id: str, *, max_messages: int = 100_000) -> MessageRecord | None:
        """Return what is known about a message that is in the queue; None if it was not found.

        ``state`` of the record says where it is: ``pending``, ``delayed`` or ``processing``. Messages that wait are
        searched in steps of up to 500 messages. A message that has left the queue is in `records`, or nowhere.

        Args:
            message_id: The id of the message, as a receipt, an event or a log line has it.
            max_messages: How many waiting messages to look at, at most.

        Raises:
            ConfigurationError: An argument cannot be used.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.get(message_id, max_messages)

    async def cancel(self, message_id: str) -> CancelOutcome:
        """Cancel a message by its id, and return what became of it. No list is searched: it takes constant time.

        - ``cancelled``: the message was delayed, or waited for its next attempt. It is gone.
        - ``marked``: the message is marked. It stays in its place, and the claim that meets it drops it.
        - ``in_flight``: a consumer has it, and nothing has changed. If its handler fails, you can cancel the retry.
        - ``unknown``: no such message is in the queue.

        A list does not tell whether it has an id, so an id that does not exist is ``marked`` too while other messages
        wait; such a mark is forgotten when the queue is empty, after 30 days at the latest. A message that is gone has
        an event ``cancelled``, a log line and, if the queue has a journal, an entry there. Its deduplication key still
        suppresses duplicates. Without a visibility timeout, a message in flight is ``marked``, too: the mark is for the
        case that it comes back.

        Args:
            message_id: The id of the message, as a receipt, an event or a log line has it.

        Raises:
            ConfigurationError: This cannot be an id.
            GatewayContractError: The queue has a custom gateway.
            LuaScriptError: Redis has no memory left for the mark; nothing has changed.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        return await self._protocol.operator.cancel(message_id)

    async def trace(self, message_id: str, *, max_entries: int = 1_000_000) -> list[TraceEntry]:
        """Return the history of a message from the journal, the oldest first.

        The journal is read backwards from its end until the message was published, so the history of a young message is
        found at once. It is empty if the journal tells nothing about the message, or not any more.

        Args:
            message_id: The id of the message.
            max_entries: How many entries of the journal to read at most.

        Raises:
            ConfigurationError: An argument cannot be used.
            GatewayContractError: The queue has a custom gateway.
            JournalError: The queue has no journal.
        """
        return await self._protocol.operator.trace(message_id, max_entries)

    async def why(self, message_id: str) -> Explanation:
        """Explain in one sentence why a message is not done, or what became of it.

        It says what the message waits for: others before it, a limit, a pause, a delay, a retry, a worker; who has it;
        or how it ended. It looks at up to 10,000 waiting messages, records and entries of the journal, of each
        partition. A journal makes it know more: since when a message is held, after which error it is retried, and how
        it ended.

        Args:
            message_id: The id of the message, as a receipt, an event or a log line has it.

        Raises:
            ConfigurationError: This cannot be an id.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.why(message_id)

    async def purge(self, target: PurgeTarget) -> int:
        """Delete all messages of one kind, and return how many there were.

        Messages that are published after the call began stay. ``orphans`` are messages that a crashed consumer
        without a visibility timeout has left in ``processing``.

        Args:
            target: ``pending``, ``delayed``, ``completed``, ``failed``, ``dead_letters`` or ``orphans``.

        Raises:
            ConfigurationError: The target cannot be purged, for example ``processing``.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.purge(target)

    async def redrive_dead_letters(
        self,
        *,
        max_messages: int | None = None,
        where: Callable[[MessageRecord], Any] | None = None,
        dry_run: bool = False,
        respect_deduplication: bool = False,
    ) -> RedriveSummary:
        """Publish dead letters again, oldest first, each with a new id and a delivery count of 0.

        A redriven message has the id of the dead letter in ``replay_of``.

        Args:
            max_messages: How many dead letters to redrive at most; None takes all.
            where: Called with the `MessageRecord` of each dead letter; only those for which it returns a true value are
                redriven.
            dry_run: Only count.
            respect_deduplication: Leave a dead letter where it is if its deduplication key was published meanwhile.

        Raises:
            ConfigurationError: An argument cannot be used.
            QueueBackpressureError: The queue is full; what was redriven before stays redriven.
            GatewayContractError: The queue has a custom gateway.
        """
        redrive = self._protocol.operator.redrive
        return await redrive("dead_letters", max_messages, where, dry_run, respect_deduplication)

    async def redrive_failed(
        self,
        *,
        max_messages: int | None = None,
        where: Callable[[MessageRecord], Any] | None = None,
        dry_run: bool = False,
        respect_deduplication: bool = False,
    ) -> RedriveSummary:
        """Publish messages of the ``failed`` list again, as `redrive_dead_letters` does with dead letters.

        Args:
            max_messages: How many messages to redrive at most; None takes all.
            where: Called with the `MessageRecord` of each message; only those for which it returns a true value are
                redriven.
            dry_run: Only count.
            respect_deduplication: Leave a message where it is if its deduplication key was published meanwhile.

        Raises:
            ConfigurationError: An argument cannot be used.
            QueueBackpressureError: The queue is full; what was redriven before stays redriven.
            GatewayContractError: The queue has a custom gateway.
        """
        redrive = self._protocol.operator.redrive
        return await redrive("failed", max_messages, where, dry_run, respect_deduplication)

    async def pause(self, *, tenant: str | None = None) -> bool:
        """Let no consumer claim a message until `resume` is called, and return whether consumers could until now.

        Consumers of all processes stop with their next claim, and finish what they have claimed. Publishing goes on,
        and so do delays, renewals and acknowledgements. If a tenant is paused, the others have their turns as ever.

        Args:
            tenant: Pause only this tenant. Without one the whole queue is paused.

        Raises:
            PayloadValueError: The name of the tenant is empty or too long.
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        return await self._protocol.operator.pause(tenant)

    async def resume(self, *, tenant: str | None = None) -> bool:
        """Let consumers claim messages again, and return whether they were paused. Waiting consumers wake up.

        A queue and its tenants are paused and resumed independently: a paused tenant of a queue that is resumed stays
        paused.

        Args:
            tenant: Resume only this tenant. Without one the queue is resumed.

        Raises:
            PayloadValueError: The name of the tenant is empty or too long.
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        return await self._protocol.operator.resume(tenant)

    async def is_paused(self, *, tenant: str | None = None) -> bool:
        """Return whether the queue is paused, or one of its tenants.

        Args:
            tenant: Ask for this tenant, not for the queue.

        Raises:
            PayloadValueError: The name of the tenant is empty or too long.
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        return await self._protocol.operator.is_paused(tenant)

    async def paused_tenants(self, *, max_tenants: int = 1_000) -> dict[str, datetime]:
        """Return the tenants that are paused, by name, and since when each of them is.

        Args:
            max_tenants: How many tenants to return at most.

        Raises:
            ConfigurationError: ``max_tenants`` is not 1 or more.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.paused_tenants(max_tenants)

    async def schedule(
        self,
        name: str,
        *,
        message: M | dict[str, Any],
        cron: str | None = None,
        every_seconds: float | None = None,
        timezone: str = "UTC",
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        missed: MissedTicks = "one",
    ) -> bool:
        """Publish a message again and again, at the times of a schedule.

        Returns True, or False if the queue has this very schedule already. A schedule of the same name is replaced; if
        only its message changes, its ticks go on as they were. The schedule is stored in Redis, and the consumers of
        the queue publish its ticks, each of them once.

        Args:
            name: What the schedule is called in this queue. Its messages have it in the header ``schedule``, and the
                time of their tick in ``scheduled_for``.
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            cron: When to publish it, as a cron expression of five fields, or of six with seconds first.
            every_seconds: When to publish it instead: whenever so many seconds have passed since 1970, at least 1.
            timezone: The time zone of ``cron``, for example ``Europe/Vienna``.
            tenant: Whose queue to put its messages in.
            headers: Texts that are delivered with each message.
            missed: What to do with ticks that no consumer was there for: ``one`` publishes the last of them, ``all``
                publishes up to 1,000, ``skip`` none that is more than a minute late.

        Raises:
            PayloadTypeError, PayloadValueError, PayloadTooLargeError, PayloadTooDeepError: The message cannot be
                stored.
            ConfigurationError: Another argument cannot be used, or the queue has 1,000 schedules.
            MissingExtraError: ``cron`` needs the extra ``schedules``.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.scheduler.define(
            name, message, cron, every_seconds, timezone, tenant, headers, missed
        )

    async def schedules(self) -> list[Schedule]:
        """Return the schedules of the queue, those with the next tick first.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.scheduler.list()

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule. Returns False if there was none. Messages that it has published stay.

        Args:
            name: The schedule.

        Raises:
            ConfigurationError: The name cannot be one.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.scheduler.remove(name)

    async def grow_partitions(self, partitions: int) -> int:
        """Give the queue more partitions, and return how many it had. This object is refused from then on.

        Stop all producers and consumers first, and start them again with the new number: each call of an object with
        another number raises `PartitionCountError`, also the acknowledgement of a message that it has claimed. Messages
        stay in their partitions and are delivered. The new partitions have the pauses, the journal and the weights of
        the queue. Some keys change to a new partition: their order, and their deduplication windows, begin anew there.
        If it is interrupted, call it again.

        Args:
            partitions: The new number of partitions.

        Raises:
            ConfigurationError: The queue does not exist or has more partitions, or this is a partition of a queue.
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """
        return await self._protocol.operator.grower.grow(partitions)

    async def workers(self, *, max_workers: int = 1_000) -> list[ConnectedWorker]:
        """Return the processes that run a consumer loop on this queue, those that have run longest first.

        A process with `run`, `run_queues` or ``rmq worker`` is there from its second second on. One that ends is gone
        at once, one that was killed after 30 seconds. Consumers that use `process_message` or `process_messages`
        alone are not shown.

        Args:
            max_workers: How many processes to return at most.
        """
        return await self._protocol.operator.workers(max_workers)

    async def tenants(self, *, max_tenants: int = 1_000) -> dict[str, int]:
        """Return the tenants with waiting messages and how many wait for each, the next to be served first.

        Args:
            max_tenants: How many tenants to return at most.

        Raises:
            ConfigurationError: ``max_tenants`` is not 1 or more.
            GatewayContractError: The queue has a custom gateway.
        """
        return await self._protocol.operator.tenants(max_tenants)
