"""What operators ask of a queue, for the asyncio shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis_message_queue.asyncio.tenant import Tenant
from redis_message_queue.messages import MessageRecord, QueueStats, RedriveSummary
from redis_message_queue.protocol.operator import Listed, Source, Target
from redis_message_queue.protocol.queue import QueueProtocol


class OperatorMethods:
    """The part of a queue that looks at all of it, safe while others work on it."""

    _protocol: QueueProtocol

    async def stats(self, *, oldest: bool = True) -> QueueStats:
        """How many messages are where, how many tenants wait, and how old the oldest waiting message is.

        The oldest message is found by a look at the next message of each tenant, a thousand tenants at a time: 100,000
        tenants are a hundred short scripts. With ``oldest=False`` it takes one script, and ``oldest_pending_seconds``
        is None.
        """
        return await self._protocol.operator.stats(oldest)

    async def peek(
        self, count: int = 10, *, source: Source = "pending", tenant: str | None = None
    ) -> list[MessageRecord]:
        """The next messages of a source, untouched: of ``pending`` in the order of their delivery, of one tenant if you
        say which; of ``processing`` whose lease ends first; of ``delayed`` which is due first; the newest of the rest.
        """
        return await self._protocol.operator.peek(count, source, tenant)

    async def records(self, source: Listed = "dead_letters", *, max_records: int = 100) -> list[MessageRecord]:
        """What is known of messages that have left, the newest first: ids, counts, times, errors, payloads."""
        return await self._protocol.operator.records(source, max_records)

    async def purge(self, target: Target) -> int:
        """Remove all messages of one kind for good, and say how many there were.

        Messages that are published after the call began stay.
        Refuses ``processing``. ``orphans`` are messages that a consumer without a visibility timeout has left behind;
        on such a queue those that are being handled just now look the same.
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
        """Make dead letters messages again, the oldest first, with a fresh id and a fresh delivery budget.

        ``where`` chooses by a letter's record; ``dry_run`` only counts. What was redriven remembers the id it had
        (``replay_of``). With ``respect_deduplication`` a letter whose key was published meanwhile stays where it is.
        Raises `QueueBackpressureError` when the queue is full.
        """
        operator = self._protocol.operator
        return await operator.redrive("dead_letters", max_messages, where, dry_run, respect_deduplication)

    async def redrive_failed(
        self,
        *,
        max_messages: int | None = None,
        where: Callable[[MessageRecord], Any] | None = None,
        dry_run: bool = False,
        respect_deduplication: bool = False,
    ) -> RedriveSummary:
        """Make messages of the failed list messages again, as `redrive_dead_letters` does with dead letters."""
        operator = self._protocol.operator
        return await operator.redrive("failed", max_messages, where, dry_run, respect_deduplication)

    async def tenants(self, *, max_tenants: int = 1_000) -> dict[str, int]:
        """The tenants with waiting messages, whose turn is next first, and how many wait for each."""
        return await self._protocol.operator.tenants(max_tenants)

    def tenant(self, name: str) -> Tenant:
        """One tenant's own line."""
        return Tenant(self._protocol, name)
