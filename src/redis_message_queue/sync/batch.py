"""Several messages for one ``with`` block of the blocking queue."""

from __future__ import annotations

from types import TracebackType
from typing import Generic

from redis_message_queue.process.process_bound import ProcessBound
from redis_message_queue.protocol.consume.batch_block import BatchBlock
from redis_message_queue.protocol.consume.batch_methods import BatchMethods, BatchSequence
from redis_message_queue.protocol.consume.claim_attempt import HANDED_OVER
from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.blocking import blocking
from redis_message_queue.sync.message import ReceivedMessage


class Batch(BatchSequence[ReceivedMessage[M]]):
    """The messages of a batch, in the order of their delivery."""

    ack = blocking(BatchMethods[ReceivedMessage[M]].ack)
    fail = blocking(BatchMethods[ReceivedMessage[M]].fail)


class ProcessMessages(ProcessBound, Generic[M]):
    """One batch for one ``with`` block."""

    def __init__(self, protocol: QueueProtocol, max_messages: int, wait_seconds: float | None) -> None:
        protocol.check_batch(max_messages, wait_seconds)
        self._protocol = protocol
        self._max_messages = max_messages
        self._wait_seconds = wait_seconds
        self._block: BatchBlock | None = None

    def __enter__(self) -> Batch[M]:
        if self._block is not None:
            raise RuntimeError("this context was used; call process_messages() again for another batch")
        block = self._block = self._protocol.batch_block(self._max_messages, self._wait_seconds)
        try:
            attempt = block.begin(finish(block.claim()))
            batch = Batch[M](block)
            # The last step before the handler: up to here Ctrl-C leaves a claim that is recovered.
            if attempt is not None:
                attempt.state = HANDED_OVER
            return batch
        except BaseException:
            block.abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            finish(self._block.leave(error))
