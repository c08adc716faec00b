"""Handlers in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis_message_queue.protocol.loop.run_options import Middleware
from redis_message_queue.protocol.loop.worker_loop import LOOK_SECONDS
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.awaitable import refuse_awaitable
from redis_message_queue.values import checks


def wrapped(handler: Callable[[Any], Any], middleware: Sequence[Middleware]) -> Callable[[Any], Any]:
    """Return the handler inside of its middleware, the first of which is the outermost."""
    checks.required_function("handler", handler)
    checks.plain_function("handler", handler)
    for one in reversed(checks.functions("middleware", middleware)):
        checks.plain_function("middleware", one)
        handler = _around(one, handler)
    return handler


def _around(middleware: Middleware, call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: middleware(given, call_next)


class ThreadWorkers:
    """Runs handlers in the thread of the caller, or in several."""

    refuse_awaitable = staticmethod(refuse_awaitable)

    async def run_together(
        self, works: Sequence[Callable[[], Coroutine[Any, Any, Any]]], name: str, stop: Callable[[], None]
    ) -> None:
        errors: list[BaseException] = []

        def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
            try:
                finish(work())
            except BaseException as error:
                errors.append(error)
                stop()

        threads = [
            threading.Thread(target=run, args=(work,), name=f"{name}-{number}", daemon=True)
            for number, work in enumerate(works, 1)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_SECONDS)
        finally:
            # Ctrl-C: they finish what they have begun. A second one does not wait for that.
            stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if errors:
            raise errors[0]


THREADS = ThreadWorkers()
