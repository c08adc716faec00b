"""What operators do with one part of a live queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_message_queue.protocol.operate.cancel import Canceller
from redis_message_queue.protocol.operate.pages import PageReader
from redis_message_queue.protocol.operate.pause import Pauser
from redis_message_queue.protocol.operate.purge import Purger
from redis_message_queue.protocol.operate.reader import QueueReader
from redis_message_queue.protocol.operate.redrive import Redriver
from redis_message_queue.protocol.operate.trace import MessageFinder
from redis_message_queue.protocol.operate.workers import WorkerReader

if TYPE_CHECKING:
    from redis_message_queue.protocol.queue import QueueProtocol


class PartOperator:
    """Reads and pauses a part, removes and redrives its messages; a custom gateway may not support it."""

    def __init__(self, queue: QueueProtocol) -> None:
        store = queue.store
        store.capabilities.require("operators")
        self.pages = pages = PageReader(store.calls)
        self.reader = QueueReader(store, pages)
        self.workers = WorkerReader(pages)
        leased = store.options.message_visibility_timeout_seconds is not None
        self.finder = MessageFinder(pages, decode=store.decodes, leased=leased)
        self.canceller = Canceller(store.calls, queue.emitter)
        self.pauser = Pauser(store.calls, pages)
        self.purger = Purger(store.calls, pages)
        self.redriver = Redriver(store, pages, queue.builder if queue.options.deduplication else None, queue.emitter)
