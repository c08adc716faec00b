"""A batch: a sequence of received messages, and the methods that settle single ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast, overload

from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.batch_block import BatchBlock
from redis_message_queue.protocol.consume.received_message import ReceivedMessage

R = TypeVar("R", bound=ReceivedMessage[Any])  # of a shell


class BatchSequence(ProcessBound, Sequence[R]):
    """The messages of a batch, in the order of their delivery."""

    def __init__(self, block: BatchBlock) -> None:
        self._block = block

    @overload
    def __getitem__(self, place: int) -> R: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[R]: ...

    def __getitem__(self, place: int | slice) -> R | Sequence[R]:
        return cast("R | Sequence[R]", self._block.messages[place])

    def __len__(self) -> int:
        return len(self._block.messages)

    def __iter__(self) -> Iterator[R]:
        return cast(Iterator[R], iter(self._block.messages))


class BatchMethods(BatchSequence[R]):
    """The methods that settle single messages of a batch."""

    async def ack(self, message: R) -> bool:
        """Acknowledge this message now. Returns False if its lease was lost.

        Args:
            message: A message of this batch.

        Raises:
            ConfigurationError: The message is not of this batch, or was settled before.
            CleanupFailedError: Redis could not be reached in time. The message is still in the batch: call it again,
                or leave the block.
        """
        return await self._block.ack(message)

    async def fail(self, message: R, error: Exception) -> bool:
        """Fail this message now, as if its handler had raised ``error``. Returns False if its lease was lost.

        Args:
            message: A message of this batch.
            error: Why it failed; it is kept with the message and decides about a retry. It may be a `RetryLater`,
                `Discard` or `DeadLetter`.

        Raises:
            ConfigurationError: The message is not of this batch, or was settled before.
            CleanupFailedError: Redis could not be reached in time. The message is still in the batch.
        """
        return await self._block.fail(message, error)
