"""The methods of a queue, described once for both shells: arguments, results and errors.

Each shell overrides every method, with its own types. `help()`, editors and the reference page find the text here.
"""

from __future__ import annotations

from typing import Any


class OperatorContract:
    """The methods for operators, safe while others work on the queue."""

    def stats(self, *args: Any, **kwargs: Any) -> Any:
        """Count the messages of the queue, by where they are.

        Args:
            oldest: Also find out how old the oldest waiting message is. This looks at the next message of every
                tenant, 1,000 tenants per script. With False, one script is enough, and ``oldest_pending_seconds`` is
                None.

        Raises:
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """

    def peek(self, *args: Any, **kwargs: Any) -> Any:
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

    def records(self, *args: Any, **kwargs: Any) -> Any:
        """Read what is known about messages that have left the queue, newest first.

        Args:
            source: ``dead_letters``, ``failed`` or ``completed``.
            max_records: How many records to read at most.

        Raises:
            ConfigurationError: An argument cannot be used.
            GatewayContractError: The queue has a custom gateway.
        """

    def get(self, *args: Any, **kwargs: Any) -> Any:
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

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
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

    def trace(self, *args: Any, **kwargs: Any) -> Any:
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

    def purge(self, *args: Any, **kwargs: Any) -> Any:
        """Delete all messages of one kind, and return how many there were.

        Messages that are published after the call began stay. ``orphans`` are messages that a crashed consumer
        without a visibility timeout has left in ``processing``.

        Args:
            target: ``pending``, ``delayed``, ``completed``, ``failed``, ``dead_letters`` or ``orphans``.

        Raises:
            ConfigurationError: The target cannot be purged, for example ``processing``.
            GatewayContractError: The queue has a custom gateway.
        """

    def redrive_dead_letters(self, *args: Any, **kwargs: Any) -> Any:
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

    def redrive_failed(self, *args: Any, **kwargs: Any) -> Any:
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

    def pause(self, *args: Any, **kwargs: Any) -> Any:
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

    def resume(self, *args: Any, **kwargs: Any) -> Any:
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

    def is_paused(self, *args: Any, **kwargs: Any) -> Any:
        """Return whether the queue is paused, or one of its tenants.

        Args:
            tenant: Ask for this tenant, not for the queue.

        Raises:
            PayloadValueError: The name of the tenant is empty or too long.
            GatewayContractError: The queue has a custom gateway.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """

    def paused_tenants(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tenants that are paused, by name, and since when each of them is.

        Args:
            max_tenants: How many tenants to return at most.

        Raises:
            ConfigurationError: ``max_tenants`` is not 1 or more.
            GatewayContractError: The queue has a custom gateway.
        """

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
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

    def schedules(self, *args: Any, **kwargs: Any) -> Any:
        """Return the schedules of the queue, those with the next tick first.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """

    def unschedule(self, *args: Any, **kwargs: Any) -> Any:
        """Remove a schedule. Returns False if there was none. Messages that it has published stay.

        Args:
            name: The schedule.

        Raises:
            ConfigurationError: The name cannot be one.
            GatewayContractError: The queue has a custom gateway.
        """

    def grow_partitions(self, *args: Any, **kwargs: Any) -> Any:
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

    def tenants(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tenants with waiting messages and how many wait for each, the next to be served first.

        Args:
            max_tenants: How many tenants to return at most.

        Raises:
            ConfigurationError: ``max_tenants`` is not 1 or more.
            GatewayContractError: The queue has a custom gateway.
        """


class QueueContract:
    """The methods for producers and consumers."""

    @property
    def key(self) -> Any:
        """The names of this queue's Redis keys.

        Raises:
            ConfigurationError: The queue has partitions, each with its own keys: use `partition`.
        """

    @property
    def partitions(self) -> Any:
        """How many partitions the queue has."""

    def partition(self, *args: Any, **kwargs: Any) -> Any:
        """Return one partition as a queue of its own, to look at its keys or to work with this part alone.

        What you publish there stays there, whatever its keys are. A queue without partitions is its own partition 0.

        Args:
            number: Which one, from 0.

        Raises:
            ConfigurationError: The queue has no such partition.
        """

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        """Add a message to the queue.

        Returns True, or False if deduplication suppressed it. A call that was interrupted or got no reply can be
        retried: with deduplication the message is stored once.

        Args:
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            tenant: Whose queue to put it in. Tenants are served round-robin.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with the message: a mapping of str to str, added to what ``get_headers``
                returns.
            deduplication_key: Suppress the message if this key was published within the deduplication window, whatever
                the queue's own options say.
            ttl_seconds: How long the message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of this message that was not confirmed. The same call is sent
                again, and counts once.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            PayloadTypeError, PayloadValueError, PayloadTooLargeError, PayloadTooDeepError: The message cannot be
                stored.
            ConfigurationError: Another argument cannot be used.
            QueueBackpressureError: The queue is full; nothing was stored.
            QueueDrainedError: This object was drained; nothing was stored.
            PublishNotConfirmedError: The replicas or the disk did not confirm it in time; pass the error as
                ``repeat_of``.
            RetryBudgetExhaustedError: Redis could not be reached in time; it is unknown whether the message was
                stored, unless the error's ``was_sent`` is False.
        """

    def publish_many(self, *args: Any, **kwargs: Any) -> Any:
        """Add many messages to the queue, in their order.

        Returns for each message what `publish` would return. The messages are sent in chunks of up to 1,000, and
        each chunk is stored as a whole or not at all.

        Args:
            messages: An iterable of str or dict; with a ``codec``, of what it encodes.
            tenant: Whose queue to put them in.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with each message: a mapping of str to str, added to what ``get_headers``
                returns.
            ttl_seconds: How long a message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of these messages that was not confirmed.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            Exception: What `publish` raises. The error has the ``results`` of the chunks before it, so
                ``messages[len(error.results):]`` still need to be published.
        """

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Add a message to the queue, and get a receipt with its id.

        It does the same as `publish`, in the same round trip. For a duplicate, one more round trip finds the message
        that holds the deduplication key; ``duplicate_of`` is None if its window has ended meanwhile.

        Args:
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            tenant: Whose queue to put it in. Tenants are served round-robin.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with the message: a mapping of str to str, added to what ``get_headers``
                returns.
            deduplication_key: Suppress the message if this key was published within the deduplication window, whatever
                the queue's own options say.
            ttl_seconds: How long the message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of this message that was not confirmed. The same call is sent
                again, and counts once.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            GatewayContractError: The queue has a custom gateway.
            Exception: What `publish` raises.
        """

    def submit_many(self, *args: Any, **kwargs: Any) -> Any:
        """Add many messages to the queue, in their order, and get a receipt for each.

        Args:
            messages: An iterable of str or dict; with a ``codec``, of what it encodes.
            tenant: Whose queue to put them in.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            headers: Texts that are delivered with each message: a mapping of str to str, added to what ``get_headers``
                returns.
            ttl_seconds: How long a message may wait. If it is older when its turn comes, it goes to the dead letters.
            partition_key: In a queue with partitions: what decides on the partition. None takes the tenant, else the
                deduplication key, else each partition in turn.
            repeat_of: The error of an earlier publish of these messages that was not confirmed.
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            GatewayContractError: The queue has a custom gateway.
            Exception: What `publish_many` raises. The error has the ``receipts`` of the chunks before it.
        """

    def process_message(self, *args: Any, **kwargs: Any) -> Any:
        """Get the next message, for one ``with`` block.

        The block gets the payload, or None if no message arrived within ``message_wait_interval_seconds``. Leaving
        the block normally acknowledges the message. An exception fails it: it is retried, or kept in ``failed``, as
        the options say. `RetryLater`, `Discard` and `DeadLetter` decide what becomes of it, and end the block
        normally. `KeyboardInterrupt`, `SystemExit` and cancellation leave it to its lease.

        Raises:
            RetryBudgetExhaustedError: Redis could not be reached in time. A message that was claimed meanwhile is
                recovered by the next call.
            CleanupFailedError: The handler succeeded, and the message could not be acknowledged; it may be delivered
                again.
        """

    def process_message_callback(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``handler`` with the payload of the next message.

        Returns False if no message arrived within ``message_wait_interval_seconds``.

        Args:
            handler: Called with the payload. Its exception fails the message and is raised here, unless it is a
                `HandlerOutcome`.

        Raises:
            ConfigurationTypeError: ``handler`` cannot be called.
            Exception: What ``handler`` or `process_message` raises.
        """

    def process_messages(self, *args: Any, **kwargs: Any) -> Any:
        """Get a batch of messages, for one ``with`` block.

        The batch is claimed in one step, and is empty if no message arrived. ``batch.ack(message)`` and
        ``batch.fail(message, error)`` settle one message at once. Leaving the block normally acknowledges the rest
        in one round trip. An exception requeues the rest at the front of the queue, in order. `KeyboardInterrupt`,
        `SystemExit` and cancellation leave it to its lease. One heartbeat renews the whole batch.

        Args:
            max_messages: How many messages to claim at most, up to 1,000.
            wait_seconds: How long to wait for the first message; None takes ``message_wait_interval_seconds``.

        Raises:
            ConfigurationError: An argument cannot be used.
            RetryBudgetExhaustedError, CleanupFailedError: As in `process_message`.
        """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``handler`` with messages until you stop it: with SIGTERM, Ctrl-C, the queue's ``interrupt`` or `drain`.

        A message is acknowledged when its handler returns, and fails when it raises; the loop continues either way.
        A handler can also raise `RetryLater`, `Discard` or `DeadLetter` to decide what becomes of its message.
        When the loop stops, running handlers finish, and messages that no handler has started are requeued.

        Args:
            handler: Called with a `ReceivedMessage`, or with a list of them if ``batch_size`` is set.
            concurrency: How many handlers run at the same time: threads in the sync queue, tasks in the async one.
            prefetch: How many messages to claim in one round trip. Acknowledgements are sent with the next claim.
            batch_size: Call the handler with a list of up to this many messages.
            batch_seconds: How long to wait until a batch is full.
            until_empty: Return when no message is waiting.
            wait_for_retries: With ``until_empty``, also wait for the next attempts of messages that this loop retries.
            middleware: Functions around the handler, the outermost first. Each is called with what the handler gets and
                with ``call_next``, and usually returns what ``call_next(message)`` returns. What it raises counts as
                raised by the handler; if it returns without calling, the message is acknowledged.
            renew_leases: Renew the lease of each message until it is settled: every ``heartbeat_interval_seconds``, or
                a third of the lease. A handler that hangs keeps its message, see ``max_processing_seconds``.
            signals: In the main thread, stop on SIGTERM and SIGINT where they have their default handlers, unless the
                queue has an ``interrupt``. The same signal again acts as if there were no loop.

        Returns:
            RunSummary: How many messages were handled, failed, discarded, requeued, dead-lettered and left unsettled,
                how many attempts that took, and the signal that stopped it, if one did.

        Raises:
            CleanupFailedError: Redis refused an acknowledgement. One that Redis does not answer is retried beside the
                handlers and then left to the lease.
            ConfigurationError: An argument cannot be used.
            RetryBudgetExhaustedError: Redis could not be reached in time.
        """

    def tenant(self, *args: Any, **kwargs: Any) -> Any:
        """Return one tenant's own queue.

        Args:
            name: The tenant.

        Raises:
            ConfigurationError: The name is empty or too long.
        """

    def current_message(self, *args: Any, **kwargs: Any) -> Any:
        """Return the message that the handler around this call is working on, or None outside of a handler.

        Raises:
            GatewayContractError: The queue has a custom gateway, which passes on payloads only.
        """

    def drain(self, *args: Any, **kwargs: Any) -> Any:
        """Stop accepting work, and wait until everything that was started is settled.

        Publishes are refused from now on, and consumers claim nothing more. Publishes that are under way are waited
        for, and a publish that waits for room is interrupted. Claims that no handler has seen are requeued. Running
        handlers are not waited for. A drained object stays drained.

        Args:
            timeout: How many seconds to wait; None waits as long as it takes. With 0 it stops accepting work and
                returns immediately.

        Returns:
            bool: True if nothing is under way or unconfirmed any more. False if the time was up or Redis could not
                be reached: call it again.

        Raises:
            ConfigurationError: ``timeout`` is negative.
        """

    @property
    def is_draining(self) -> Any:
        """Whether `drain` was called on this object."""

    @property
    def is_drained(self) -> Any:
        """Whether a `drain` of this object has finished."""


class TenantContract:
    """The methods of one tenant's own queue."""

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        """Add a message to this tenant's queue. Returns False if deduplication suppressed it.

        Args:
            message: A str, or a dict that can be encoded as JSON; with a ``codec``, what it encodes.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            Exception: What `RedisMessageQueue.publish` raises.
        """

    def publish_many(self, *args: Any, **kwargs: Any) -> Any:
        """Add many messages to this tenant's queue, in their order.

        Args:
            messages: An iterable of str or dict; with a ``codec``, of what it encodes.
            delay_seconds: Do not deliver before this many seconds have passed.
            at: Do not deliver before this time (a timezone-aware datetime).
            timeout_seconds: How long to try, if the retry budget or the wait for room would be longer.

        Raises:
            Exception: What `RedisMessageQueue.publish_many` raises.
        """

    def length(self, *args: Any, **kwargs: Any) -> Any:
        """Return how many of its messages wait, without delayed ones and those in processing.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """

    def exists(self, *args: Any, **kwargs: Any) -> Any:
        """Return whether any of its messages waits.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        """Delete its waiting messages, and return how many there were. Delayed ones and those in processing stay.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """

    def pause(self, *args: Any, **kwargs: Any) -> Any:
        """Let no consumer claim its messages until `resume` is called, and return whether they could until now.

        Other tenants have their turns as ever. What is claimed is finished, and publishing goes on.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """

    def resume(self, *args: Any, **kwargs: Any) -> Any:
        """Let consumers claim its messages again, and return whether it was paused.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """

    def is_paused(self, *args: Any, **kwargs: Any) -> Any:
        """Return whether this tenant is paused. The queue can be paused even if this is False.

        Raises:
            GatewayContractError: The queue has a custom gateway.
        """


class BatchContract:
    """The methods that settle single messages of a batch."""

    def ack(self, *args: Any, **kwargs: Any) -> Any:
        """Acknowledge this message now. Returns False if its lease was lost.

        Args:
            message: A message of this batch.

        Raises:
            ConfigurationError: The message is not of this batch, or was settled before.
            CleanupFailedError: Redis could not be reached in time. The message is still in the batch: call it again,
                or leave the block.
        """

    def fail(self, *args: Any, **kwargs: Any) -> Any:
        """Fail this message now, as if its handler had raised ``error``. Returns False if its lease was lost.

        Args:
            message: A message of this batch.
            error: Why it failed; it is kept with the message and decides about a retry. It may be a `RetryLater`,
                `Discard` or `DeadLetter`.

        Raises:
            ConfigurationError: The message is not of this batch, or was settled before.
            CleanupFailedError: Redis could not be reached in time. The message is still in the batch.
        """
