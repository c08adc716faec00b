"""What both shells have with types of their own, described once: arguments, results and errors.

Each shell overrides every method. `help()`, editors and the reference page find the text here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.stored.keys import QueueKeys

Function = TypeVar("Function", bound=Callable[..., Any])


def described_as(described: Callable[..., Any]) -> Callable[[Function], Function]:
    """Give a function of a shell the description that both shells share."""

    def decorate(function: Function) -> Function:
        function.__doc__ = described.__doc__
        return function

    return decorate


class QueueContract:
    """The methods for consumers."""

    _protocol: QueueProtocol

    @property
    def key(self) -> QueueKeys:
        """The names of this queue's Redis keys.

        Raises:
            ConfigurationError: The queue has partitions, each with its own keys: use `partition`.
        """
        return self._protocol.keys

    @property
    def partitions(self) -> int:
        """How many partitions the queue has."""
        return len(self._protocol.parts)

    def partition(self, *args: Any, **kwargs: Any) -> Any:
        """Return one partition as a queue of its own, to look at its keys or to work with this part alone.

        What you publish there stays there, whatever its keys are. A queue without partitions is its own partition 0.

        Args:
            number: Which one, from 0.

        Raises:
            ConfigurationError: The queue has no such partition.
        """

    def process_message(self, *args: Any, **kwargs: Any) -> Any:
        """Get the next message, for one ``with`` block.

        The block gets the payload, or None if no message arrived within ``message_wait_interval_seconds``. Leaving
        the block normally acknowledges the message. If the block raises, the message is removed;
        ``enable_failed_queue=True`` or a `RetryPolicy` keeps it. `RetryLater`, `Discard` and `DeadLetter` decide what
        becomes of it, and end the block normally. `KeyboardInterrupt`, `SystemExit` and cancellation leave it to its
        lease.

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
            prefetch: How many messages to claim in one round trip; None claims one for each idle handler, and holds no
                message that no handler is ready for. Acknowledgements are sent with the next claim.
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
    def is_draining(self) -> bool:
        """Whether `drain` was called on this object."""
        return self._protocol.gate.is_shut

    @property
    def is_drained(self) -> bool:
        """Whether a `drain` of this object has finished."""
        return self._protocol.is_drained


class TenantContract:
    """The methods that publish to one tenant's own queue."""

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


def run_queues(*args: Any, **kwargs: Any) -> Any:
    """Call handlers with messages of several queues, until you stop it as you stop `RedisMessageQueue.run`.

    Pass one handler for all queues, as in ``run_queues({urgent: 3, bulk: 1}, handle)``, or a handler for each, as in
    ``run_queues({orders: charge, mails: (send, 3)})``.

    As long as several queues have messages, each gets handlers in proportion to its weight. A queue without messages
    leaves its share to the others. A message is claimed when its handler can start, or up to ``prefetch`` ahead. The
    loop ends when all queues are stopped, or with the first error of one of them. A queue whose Redis cannot be reached
    does not stop the others: it is logged and tried again, and ends the loop when no other queue is served.

    Args:
        queues: Each queue and its weight, a whole number from 1 to 1,000; or its handler, whose weight is 1; or a tuple
            of its handler and its weight. ``message.queue`` tells a handler the name.
        handler: As in `RedisMessageQueue.run`; left out if ``queues`` has a handler for each.
        concurrency: How many handlers run at the same time, of all queues together.
        prefetch: How many messages of one queue to claim in one round trip; None claims one for each handler that can
            start.
        batch_size: Call the handler with a list of up to this many messages, all of one queue.
        batch_seconds: How long to wait until a batch is full. Meanwhile the batch counts as being handled.
        until_empty: Return when no message is waiting in any of the queues.
        wait_for_retries: With ``until_empty``, also wait for the next attempts of messages that this loop retries.
        middleware: As in `RedisMessageQueue.run`.
        renew_leases: As in `RedisMessageQueue.run`.
        signals: As in `RedisMessageQueue.run`, unless one of the queues has an ``interrupt``.

    Returns:
        list[RunSummary]: What was done with the messages of each queue, in the order of ``queues``.

    Raises:
        ConfigurationError: An argument cannot be used.
        RetryBudgetExhaustedError: Redis could not be reached in time, for any of the queues that are left.
    """


def complete(*args: Any, **kwargs: Any) -> Any:
    """Acknowledge this message now, and publish its results in the same step: all of it happens, or nothing.

    Args:
        publish: Pairs of a queue and a message, or triples with arguments of `publish` as a dict, for example
            ``{"tenant": "acme"}``. The queues must be on the same server; on a cluster they must share a hash
            tag. A duplicate in one of them is no error.

    Raises:
        LeaseLostError: Another consumer may have the message; nothing was published.
        QueueBackpressureError: One of the queues is full; nothing was published, and the message is still yours.
        ConfigurationError: The queues are not on the same server, or a message was completed before.
        CleanupFailedError: Redis did not confirm it. All of it has happened, or nothing; you can complete it again.
    """


def queues(*args: Any, **kwargs: Any) -> Any:
    """Return the queues of a server, sorted by name.

    A queue registers itself at its first contact with the server, as far as its Redis user may do that. So a queue can
    be missing here that exists. One whose keys were deleted is left out.

    Args:
        client: A redis-py client.
        max_queues: How many queues to return at most.

    Raises:
        ConfigurationError: An argument cannot be used.
        RetryBudgetExhaustedError: Redis could not be reached in time.
    """


def open_registered(*args: Any, **kwargs: Any) -> Any:
    """Return a queue object for a queue that `queues` has returned.

    Args:
        registered: The entry of the queue.
        client: A redis-py client of the same server.
        options: Further options of `RedisGateway`, for example ``retry_budget_seconds``.

    Raises:
        ConfigurationError: An argument cannot be used.
    """
