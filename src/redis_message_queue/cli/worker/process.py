"""A worker process: calls the user's function until it has to stop, or until its supervisor is gone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
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

from redis_message_queue import HandlerOutcome, RedisMessageQueue
from redis_message_queue.asyncio import RedisMessageQueue as AsyncRedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus, status_of
from redis_message_queue.cli.output import PrintableFormatter
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.cli.worker.command import WorkerSettings
from redis_message_queue.errors import ConfigurationError, RedisMessageQueueError

log = logging.getLogger("redis_message_queue.worker")
Report = Callable[..., None]


def main() -> int:
    """Run a worker. The supervisor passes two pipes: one has the settings and closes with it, one takes reports."""
    settings_pipe, reports_pipe = (int(number) for number in sys.argv[1:])
    for pipe in (settings_pipe, reports_pipe):
        os.set_inheritable(pipe, False)
    with open(settings_pipe, "rb", buffering=0) as incoming, open(reports_pipe, "w", buffering=1) as reports:
        settings = WorkerSettings.from_json(incoming.readline())
        threading.Thread(target=_stop_without_supervisor, args=(incoming.fileno(),), daemon=True).start()
        logging.basicConfig(level=settings.log_level.upper())
        for handler in logging.getLogger().handlers:
            handler.setFormatter(PrintableFormatter("%(asctime)s %(process)d %(levelname)s %(message)s"))

        def report(**values: Any) -> None:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(values), file=reports, flush=True)

        try:
            return _work(settings, report)
        except (RedisMessageQueueError, RedisError) as error:
            report(error=str(error) or type(error).__name__, status=status_of(error))
            return status_of(error)


def _stop_without_supervisor(pipe: int) -> None:
    """Only the supervisor holds the other end of the pipe: the read returns when the supervisor is gone."""
    with contextlib.suppress(OSError):
        os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _work(settings: WorkerSettings, report: Report) -> int:
    handler = load_reference("the handler", settings.handler)
    if not callable(handler):
        raise ConfigurationError(
            f"the handler: {settings.handler} is of type {type(handler).__name__}, which cannot be called"
        )
    theirs = None if settings.queue_object is None else load_reference("--queue", settings.queue_object)
    try:
        if isinstance(theirs, AsyncRedisMessageQueue) or _is_async(handler) or _is_async(theirs):
            asyncio.run(_work_async(settings, handler, theirs, report))
        else:
            _work_sync(settings, handler, theirs, report)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitStatus.TERMINATED
    return ExitStatus.OK


def _work_sync(settings: WorkerSettings, handler: Callable[[Any], Any], theirs: Any, report: Report) -> None:
    with contextlib.ExitStack() as stack:
        if theirs is None:
            stop = stack.enter_context(StopSignals(again=_abandon))
            assert settings.queue is not None
            options = settings.delivery.queue_options() | {"interrupt": stop}
            queue = stack.enter_context(settings.queue.open(text=not settings.payload_bytes, **options))
        else:
            queue = _checked(_made(theirs, settings), RedisMessageQueue, settings)
            stack.enter_context(_stop_signals(lambda: queue.drain(0), _abandon))
        report(ready=True)
        report(summary=asdict(queue.run(_logging_errors(handler, settings), **settings.run)))


def _abandon() -> None:
    """Stop now: the message that is being handled is delivered again when its lease ends."""
    raise KeyboardInterrupt


async def _work_async(settings: WorkerSettings, handler: Callable[[Any], Any], theirs: Any, report: Report) -> None:
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None

    def abandon() -> None:
        loop.call_soon_threadsafe(running.cancel)

    async with contextlib.AsyncExitStack() as stack:
        if theirs is None:
            stop = stack.enter_context(StopSignals(again=abandon))
            assert settings.queue is not None
            options = settings.delivery.queue_options() | {"interrupt": stop}
            queue = await stack.enter_async_context(
                settings.queue.open_async(text=not settings.payload_bytes, **options)
            )
        else:
            made = _made(theirs, settings)
            queue = _checked(await made if inspect.isawaitable(made) else made, AsyncRedisMessageQueue, settings)
            drains: set[asyncio.Task[bool]] = set()  # the loop itself has only weak references to its tasks

            def drain() -> None:
                drains.add(loop.create_task(queue.drain(0)))

            stack.enter_context(_stop_signals(lambda: loop.call_soon_threadsafe(drain), abandon))
        report(ready=True)
        report(summary=asdict(await queue.run(_logging_errors(handler, settings), **settings.run)))


def _stop_signals(
    first: Callable[[], Any], again: Callable[[], Any]
) -> contextlib.AbstractContextManager[StopSignals | None]:
    """Signal handlers that the user's own code has installed, for its queue's interrupt, stay in place."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return contextlib.nullcontext()
    return StopSignals(first=first, again=again)


def _made(theirs: Any, settings: WorkerSettings) -> Any:
    """The user's queue object, or what their function returns."""
    if isinstance(theirs, RedisMessageQueue | AsyncRedisMessageQueue) or not callable(theirs):
        return theirs
    try:
        inspect.signature(theirs).bind()
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"--queue: {settings.queue_object} cannot be called without arguments; pass a queue object, or a function "
            "that returns one"
        ) from None
    return theirs()


def _checked(queue: Any, kind: Any, settings: WorkerSettings) -> Any:
    if isinstance(queue, kind):
        return queue
    if isinstance(queue, RedisMessageQueue):
        raise ConfigurationError(
            f"{settings.handler} is async and {settings.queue_object} is a sync queue; "
            "use redis_message_queue.asyncio.RedisMessageQueue, or a sync function"
        )
    raise ConfigurationError(
        f"--queue: {settings.queue_object} is of type {type(queue).__name__}; it must be a RedisMessageQueue of "
        "redis_message_queue or redis_message_queue.asyncio, or a function that returns one"
    )


def _logging_errors(handler: Callable[[Any], Any], settings: WorkerSettings) -> Callable[[Any], Any]:
    """The handler, with a log line for each exception."""
    if _is_async(handler):

        async def call_async(received: Any) -> None:
            with _log_errors(received, settings):
                await handler(received)

        return call_async

    def call(received: Any) -> Any:
        with _log_errors(received, settings):
            return handler(received)

    return call


@contextlib.contextmanager
def _log_errors(received: Any, settings: WorkerSettings) -> Iterator[None]:
    """With --tracebacks, log where an exception came from; the queue itself logs its type and its text."""
    try:
        yield
    except HandlerOutcome:
        raise
    except Exception:
        if settings.tracebacks:
            first = received[0] if isinstance(received, list) else received
            log.exception("%s: the handler of message %s raised", first.queue, first.id)
        raise


def check_reference(name: str, reference: str) -> None:
    """Raise unless this has the form `package.module:attribute`."""
    module, colon, path = reference.partition(":")
    parts = [*module.split("."), *path.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ConfigurationError(f"{name} must be package.module:attribute, such as shop.mails:send, not {reference!r}")


def load_reference(name: str, reference: str) -> Any:
    """Import an object by `package.module:attribute`, from the current directory too."""
    check_reference(name, reference)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, path = reference.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise ConfigurationError(
                f"{name}: there is no module {missing} in this directory or in PYTHONPATH"
            ) from error
        if isinstance(error, SyntaxError):
            place = f"{error.filename}, line {error.lineno}"
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename}, line {last.lineno}"
        raise ConfigurationError(
            f"{name}: importing {module} raised {type(error).__name__}: {error} ({place})"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{name}: {module} has no {path}")
        found = getattr(found, part)
    return found


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__ counts too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


if __name__ == "__main__":
    sys.exit(main())
