"""The consumer loop that most people write by hand, in this thread or in several."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from signal import Signals
from typing import Any

from redis_message_queue.protocol.loop.prefetcher import TURN_SECONDS, Prefetcher, WorkItem
from redis_message_queue.protocol.loop.run_options import Middleware, RunOptions, RunSummary
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.awaitable import refuse_awaitable
from redis_message_queue.values import checks

LOOK_SECONDS = 0.1  # how often the main thread looks for signals while the others work


def wrapped(handler: Callable[[Any], Any], middleware: Sequence[Middleware]) -> Callable[[Any], Any]:
    """Return the handler inside of its middleware, the first of which is the outermost."""
    checks.required_function("handler", handler)
    for one in reversed(checks.functions("middleware", middleware)):
        checks.plain_function("middleware", one)
        handler = _around(one, handler)
    return handler


def _around(middleware: Middleware, call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: middleware(given, call_next)


class Loop:
    """Workers around one prefetcher: one at a time claims, all of them handle messages."""

    def __init__(self, protocol: QueueProtocol, options: RunOptions[Any]) -> None:
        self._options = options
        self._prefetcher = Prefetcher(protocol, options)
        self._turn = threading.Lock()
        self._trouble: BaseException | None = None

    def run(self) -> RunSummary:
        try:
            self._prefetcher.open()
            if self._options.concurrency == 1:
                self._work()
            else:
                self._work_together()
        finally:
            try:
                finish(self._prefetcher.close())
            finally:  # whatever interrupts that, the background threads or tasks must end
                self._prefetcher.holding.end_lease()
        return self._prefetcher.summary

    @property
    def summary(self) -> RunSummary:
        """The messages that this loop has handled so far, by how they ended."""
        return self._prefetcher.live_summary()

    def stop(self, signal: Signals | None = None) -> None:
        """Start no new work; handlers that run finish."""
        self._prefetcher.stop(signal)

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
                    thread.join(LOOK_SECONDS)
        finally:
            # Ctrl-C: they finish what they have begun. A second one does not wait for that.
            self._prefetcher.stop()
            for thread in threads:
                thread.join()
        if self._trouble is not None:
            raise self._trouble

    def _work_beside(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._trouble = self._trouble or error
            self._prefetcher.stop()

    def _work(self) -> None:
        prefetcher, alone = self._prefetcher, self._options.concurrency == 1
        while item := prefetcher.ready() or (finish(prefetcher.next_item()) if alone else self._next_in_turn()):
            self._handle(item)
            if prefetcher.acks.is_late:
                finish(prefetcher.acks.flush())

    def _next_in_turn(self) -> WorkItem | None:
        if self._prefetcher.holding.is_forked:
            return None  # the thread that may have the turn does not exist in a forked child
        self._acquire_turn()
        try:
            return finish(self._prefetcher.next_item())
        finally:
            self._turn.release()

    def _acquire_turn(self) -> None:
        if not self._turn.acquire(timeout=TURN_SECONDS):
            finish(self._prefetcher.acks.flush())
            self._turn.acquire()

    def _handle(self, work_item: WorkItem) -> None:
        handler = self._options.handler
        argument = work_item.messages[0] if self._options.batch_size is None else list(work_item.messages)
        try:
            work_item.begun = True  # the last step before the handler: up to here Ctrl-C leaves them to be requeued
            result = handler(argument)
        except Exception as error:
            finish(self._prefetcher.failed(work_item, error))
            return
        except BaseException:
            self._prefetcher.leave_alone(work_item)
            raise
        if result is not None and inspect.isawaitable(result):
            self._prefetcher.leave_alone(work_item)
            refuse_awaitable(result)
        self._prefetcher.done(work_item)
