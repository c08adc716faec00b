"""A worker process: gives messages to the user's function until it is told to stop, or its supervisor has gone."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from redis.exceptions import RedisError

from redis_message_queue import RedisMessageQueue
from redis_message_queue.asyncio import RedisMessageQueue as AsyncRedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus, status_of
from redis_message_queue.cli.output import PrintableFormatter
from redis_message_queue.cli.stopping import StopSignals
from redis_message_queue.cli.worker import reference
from redis_message_queue.cli.worker.task import Task
from redis_message_queue.errors import ConfigurationError, RedisMessageQueueError

log = logging.getLogger("redis_message_queue.worker")
AnyQueue = RedisMessageQueue | AsyncRedisMessageQueue


def main() -> int:
    """Started by the supervisor with two pipes: one says what to do and closes with it, the other carries news."""
    orders, news = (int(number) for number in sys.argv[1:])
    for pipe in (orders, news):
        os.set_inheritable(pipe, False)
    with open(orders, "rb", buffering=0) as asked, open(news, "w", buffering=1) as told:
        task = Task.from_json(asked.readline())
        threading.Thread(target=_end_with_the_supervisor, args=(asked.fileno(),), daemon=True).start()
        logging.basicConfig(level=task.log_level.upper())
        for handler in logging.getLogger().handlers:
            handler.setFormatter(PrintableFormatter("%(asctime)s %(process)d %(levelname)s %(message)s"))

        def tell(**facts: Any) -> None:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(facts), file=told, flush=True)

        try:
            return _work(task, tell)
        except (RedisMessageQueueError, RedisError) as error:
            tell(error=str(error) or type(error).__name__, status=status_of(error))
            return status_of(error)


def _end_with_the_supervisor(orders: int) -> None:
    """Only the supervisor holds the other end: the read returns when it is gone."""
    with contextlib.suppress(OSError):
        os.read(orders, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _work(task: Task, tell: Callable[..., None]) -> int:
    handler = reference.load("the handler", task.handler)
    if not callable(handler):
        raise ConfigurationError(f"the handler: {task.handler} is {type(handler).__name__}, which cannot be called")
    theirs = None if task.queue_object is None else reference.load("--queue", task.queue_object)
    try:
        if isinstance(theirs, AsyncRedisMessageQueue) or reference.is_async(handler) or reference.is_async(theirs):
            asyncio.run(_work_awaiting(task, handler, theirs, tell))
        else:
            _work_blocking(task, handler, theirs, tell)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitStatus.TERMINATED
    return ExitStatus.OK


def _work_blocking(task: Task, handler: Callable[[Any], Any], theirs: Any, tell: Callable[..., None]) -> None:
    with contextlib.ExitStack() as around:
        if theirs is None:
            stop = around.enter_context(StopSignals(again=_abandon))
            assert task.queue is not None
            options = task.delivery.queue_options() | {"interrupt": stop}
            queue = around.enter_context(task.queue.open(text=not task.payload_bytes, **options))
        else:
            queue = _checked(_made(theirs, task), RedisMessageQueue, task)
            around.enter_context(_stopping(lambda: queue.drain(0), _abandon))
        tell(ready=True)
        tell(summary=asdict(queue.run(_telling(handler, task), **task.run)))


def _abandon() -> None:
    """In a hurry: what is being handled is left to its lease."""
    raise KeyboardInterrupt


async def _work_awaiting(task: Task, handler: Callable[[Any], Any], theirs: Any, tell: Callable[..., None]) -> None:
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None

    def abandon() -> None:
        loop.call_soon_threadsafe(running.cancel)

    async with contextlib.AsyncExitStack() as around:
        if theirs is None:
            stop = around.enter_context(StopSignals(again=abandon))
            assert task.queue is not None
            options = task.delivery.queue_options() | {"interrupt": stop}
            queue = await around.enter_async_context(task.queue.open_async(text=not task.payload_bytes, **options))
        else:
            made = _made(theirs, task)
            queue = _checked(await made if inspect.isawaitable(made) else made, AsyncRedisMessageQueue, task)
            drains: set[asyncio.Task[bool]] = set()  # the loop itself holds its tasks but weakly

            def shut() -> None:
                drains.add(loop.create_task(queue.drain(0)))

            around.enter_context(_stopping(lambda: loop.call_soon_threadsafe(shut), abandon))
        tell(ready=True)
        tell(summary=asdict(await queue.run(_telling(handler, task), **task.run)))


def _stopping(
    first: Callable[[], Any], again: Callable[[], Any]
) -> contextlib.AbstractContextManager[StopSignals | None]:
    """Signals that the user's own code has taken, for its queue's interrupt, stay with it."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return contextlib.nullcontext()
    return StopSignals(first=first, again=again)


def _made(theirs: Any, task: Task) -> Any:
    """The queue object, or what the function gives that makes it."""
    if isinstance(theirs, AnyQueue) or not callable(theirs):
        return theirs
    try:
        inspect.signature(theirs).bind()
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"--queue: {task.queue_object} cannot be called without arguments; it must be a queue object, or a "
            "function that makes one"
        ) from None
    return theirs()


def _checked(queue: Any, kind: Any, task: Task) -> Any:
    if isinstance(queue, kind):
        return queue
    if isinstance(queue, RedisMessageQueue):
        raise ConfigurationError(
            f"{task.handler} is async and {task.queue_object} is a blocking queue; "
            "take redis_message_queue.asyncio.RedisMessageQueue, or a plain function"
        )
    raise ConfigurationError(
        f"--queue: {task.queue_object} is {type(queue).__name__}; it must be a RedisMessageQueue of "
        "redis_message_queue or redis_message_queue.asyncio, or a function that makes one"
    )


def _telling(handler: Callable[[Any], Any], task: Task) -> Callable[[Any], Any]:
    """The handler, with a log entry for what it raises: where, and only on request what, which may quote payloads."""
    if reference.is_async(handler):

        async def awaited(received: Any) -> None:
            with _logged(received, task):
                await handler(received)

        return awaited

    def called(received: Any) -> Any:
        with _logged(received, task):
            return handler(received)

    return called


@contextlib.contextmanager
def _logged(received: Any, task: Task) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        first = received[0] if isinstance(received, list) else received
        last = traceback.extract_tb(error.__traceback__)[-1]
        log.error(
            "message %s, delivery %d: %s at %s:%s",
            first.id,
            first.delivery_count,
            type(error).__name__,
            last.filename,
            last.lineno,
            exc_info=task.tracebacks,
        )
        raise


if __name__ == "__main__":
    sys.exit(main())
