"""The consumer loop that most people write by hand, in this thread or in several."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from redis_message_queue.protocol.feed import TURN_SECONDS, Feed, RunOptions, RunSummary, Unit
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.awaitable import refuse_awaitable

_LOOK_SECONDS = 0.1  # how often the main thread looks for signals while the others work


class Loop:
    """Workers around one feed: one at a time takes messages from it, all of them work."""

    def __init__(self, protocol: QueueProtocol, options: RunOptions[Any]) -> None:
        self._options = options
        self._feed = Feed(protocol, options)
        self._turn = threading.Lock()
        self._trouble: BaseException | None = None

    def run(self) -> RunSummary:
        self._feed.open()
        try:
            if self._options.concurrency == 1:
                self._work()
            else:
                self._work_together()
        finally:
            finish(self._feed.close())
        return self._feed.summary

    def _work_together(self) -> None:
        threads = [
            threading.Thread(target=self._work_beside, name=f"redis-message-queue-worker-{number}", daemon=True)
            for number in range(1, self._options.concurrency + 1)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_LOOK_SECONDS)
        finally:
            # Ctrl-C: they finish what they have begun. A second one does not wait for that.
            self._feed.ended = True
            for thread in threads:
                thread.join()
        if self._trouble is not None:
            raise self._trouble

    def _work_beside(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._trouble = self._trouble or error
            self._feed.ended = True

    def _work(self) -> None:
        feed = self._feed
        while (unit := feed.ready() or self._next_unit()) is not None:
            self._handle(unit)
            if feed.is_late:
                finish(feed.flush())

    def _next_unit(self) -> Unit | None:
        if self._feed.is_inherited:
            return None  # the thread that may have the turn does not exist in a forked child
        if not self._turn.acquire(timeout=TURN_SECONDS):
            finish(self._feed.flush())
            self._turn.acquire()
        try:
            return finish(self._feed.next_unit())
        finally:
            self._turn.release()

    def _handle(self, unit: Unit) -> None:
        handler = self._options.handler
        argument = unit.messages[0] if self._options.batch_size is None else list(unit.messages)
        try:
            unit.begun = True  # the last step before the handler: up to here Ctrl-C leaves them to be given back
            result = handler(argument)
        except Exception as error:
            finish(self._feed.failed(unit, error))
            return
        except BaseException:
            self._feed.leave_alone(unit)
            raise
        if result is not None and inspect.isawaitable(result):
            self._feed.leave_alone(unit)
            refuse_awaitable(result)
        self._feed.done(unit)
