"""Handlers in tasks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis_message_queue.protocol.loop.run_options import Middleware
from redis_message_queue.values import checks


def wrapped(handler: Callable[[Any], Any], middleware: Sequence[Middleware]) -> Callable[[Any], Any]:
    """Return the handler inside of its middleware, the first of which is the outermost."""
    checks.required_function("handler", handler)
    for one in reversed(checks.functions("middleware", middleware)):
        handler = _around(one, _awaitable(handler))
    return handler


def _awaitable(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a function that can always be awaited: a handler need not be async."""

    async def called(*given: Any) -> Any:
        result = function(*given)
        return await result if inspect.isawaitable(result) else result

    return called


def _around(middleware: Middleware, call_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: middleware(given, call_next)


class TaskWorkers:
    """Runs handlers in the task of the caller, or in several."""

    refuse_awaitable = None

    async def run_together(
        self, works: Sequence[Callable[[], Coroutine[Any, Any, Any]]], name: str, stop: Callable[[], None]
    ) -> None:
        async def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
            try:
                await work()
            except BaseException:  # also a handler that was cancelled from inside
                stop()
                raise

        tasks = [asyncio.create_task(run(work), name=f"{name}-{number}") for number, work in enumerate(works, 1)]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        finally:
            # The others finish what they have begun.
            stop()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            task.result()


TASKS = TaskWorkers()
