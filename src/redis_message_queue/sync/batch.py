"""Several messages for one ``with`` block of the blocking queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import cast, overload

from redis_message_queue.process_bound import ProcessBound
from redis_message_queue.protocol.batch import BatchDelivery
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.message import ReceivedMessage


class Batch(ProcessBound, Sequence[ReceivedMessage]):
    """The messages that were claimed together, in their order."""

    def __init__(self, delivery: BatchDelivery) -> None:
        self._delivery = delivery

    @overload
    def __getitem__(self, place: int) -> ReceivedMessage: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ReceivedMessage]: ...

    def __getitem__(self, place: int | slice) -> ReceivedMessage | Sequence[ReceivedMessage]:
        return cast("ReceivedMessage | Sequence[ReceivedMessage]", self._delivery.messages[place])

    def __len__(self) -> int:
        return len(self._delivery.messages)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return cast(Iterator[ReceivedMessage], iter(self._delivery.messages))

    def ack(self, message: ReceivedMessage) -> bool:
        """Acknowledge this message now. False if its lease was lost.

        After a `CleanupFailedError` the message is still in the batch: call it again, or leave the block.
        """
        return finish(self._delivery.ack(message))

    def fail(self, message: ReceivedMessage, error: Exception) -> bool:
        """Treat this message as its handler had raised ``error``. False if its lease was lost."""
        return finish(self._delivery.fail(message, error))


class ProcessMessages(ProcessBound):
    """One batch for one ``with`` block."""

    def __init__(self, delivery: BatchDelivery) -> None:
        self._delivery = delivery
        self._entered = False

    def __enter__(self) -> Batch:
        if self._entered:
            raise RuntimeError("this context was used; call process_messages() again for another batch")
        self._entered = True
        delivery = self._delivery
        try:
            finish(delivery.enter())
            batch = Batch(delivery)
            # The last step before the handler: up to here Ctrl-C leaves a claim that is found again.
            if delivery.attempt is not None:
                delivery.attempt.unsure = False
            return batch
        except BaseException:
            delivery.abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._delivery.leave(error))
