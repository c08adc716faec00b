"""A worker process: calls the user's function until it has to stop, or until its supervisor is gone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from redis_message_queue import RedisMessageQueue
from redis_message_queue.asyncio import RedisMessageQueue as AsyncRedisMessageQueue
from redis_message_queue.asyncio.handlers import TASKS
from redis_message_queue.cli.clients import is_final
from redis_message_queue.cli.exit_status import ExitStatus, status_of
from redis_message_queue.cli.log_format import set_up_logging
from redis_message_queue.cli.worker.activity import Activity, Contact, LoopWatch, Reporter, own_files
from redis_message_queue.cli.worker.worker_options import WorkerSettings, check_reference
from redis_message_queue.process.loop_signals import stopped_by_signals
from redis_message_queue.protocol.loop.shared_loop import QueuesRun
from redis_message_queue.protocol.loop.turns import Share
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.handlers import THREADS
from redis_message_queue.tasks import AsyncTasks, Tasks
from redis_message_queue.values.checks import is_async_function
from redis_message_queue.values.errors import ConfigurationError, RedisMessageQueueError
from redis_message_queue.values.plain_values import described, error_text

Report = Callable[..., None]
_PING_SECONDS = 30.0  # as long as a request may take


def main() -> int:
    """Run a worker. The supervisor passes two pipes: one has the settings and closes with it, one takes reports."""
    settings_pipe, reports_pipe = (int(number) for number in sys.argv[1:])
    for pipe in (settings_pipe, reports_pipe):
        os.set_inheritable(pipe, False)
    with open(settings_pipe, "rb", buffering=0) as incoming, open(reports_pipe, "w", buffering=1) as reports:
        settings = WorkerSettings.from_json(incoming.readline())
        threading.Thread(target=_stop_without_supervisor, args=(incoming.fileno(), settings), daemon=True).start()
        set_up_logging(
            settings.log_format,
            settings.log_level,
            tracebacks=settings.tracebacks,
            address=settings.address,
            queue=settings.queues[0].name if len(settings.queues) == 1 else None,
        )
        lock = threading.Lock()

        def report(**values: Any) -> None:
            with lock, contextlib.suppress(BrokenPipeError):
                print(json.dumps(values), file=reports, flush=True)

        try:
            return _work(settings, report)
        except (RedisMessageQueueError, RedisError) as error:
            text, status = error_text(error) or type(error).__name__, status_of(error)
            if final := is_final(error):
                text = f"the server refuses this client ({text}); check its user, password and certificate"
            report(error=text, status=status, final=final, files=_files(settings))
            return status


def _stop_without_supervisor(pipe: int, settings: WorkerSettings) -> None:
    """Only the supervisor holds the other end of the pipe: the read returns when the supervisor is gone."""
    with contextlib.suppress(OSError):
        os.read(pipe, 1)
    if settings.ready_file is not None:
        remove_ready_file(Path(settings.ready_file), settings.supervisor_pid)
    os.kill(os.getpid(), signal.SIGTERM)


def remove_ready_file(path: Path, supervisor: int) -> None:
    """Remove the file if this supervisor has made it: another one may have begun by now."""
    with contextlib.suppress(OSError):
        if path.read_text() == f"{supervisor}\n":
            path.unlink()


def _files(settings: WorkerSettings) -> list[str]:
    """The files whose change may mend a mistake: also a module that could not be imported."""
    if not settings.reload:
        return []
    files = own_files()
    for handler in settings.handlers:
        with contextlib.suppress(Exception):
            found = importlib.util.find_spec(handler.partition(":")[0])
            if found is not None and found.origin is not None:
                files.append(os.path.realpath(found.origin))
    return files


def _work(settings: WorkerSettings, report: Report) -> int:
    handlers = [_loaded_handler(reference, settings) for reference in settings.handlers]
    theirs = None if settings.queue_object is None else load_reference("--queue", settings.queue_object)
    if theirs is None and not settings.queues:
        if not isinstance(handlers[0], Tasks | AsyncTasks):
            raise ConfigurationError(
                f"pass a QUEUE or --queue: {settings.handlers[0]} is no Tasks object, which has a queue of its own"
            )
        theirs = handlers[0].queue
    of_async = [reference for reference, one in zip(settings.handlers, handlers, strict=True) if is_async(one)]
    if of_async and len(of_async) < len(handlers):
        raise ConfigurationError(
            f"{', '.join(sorted(set(of_async)))} is async and other handlers are not; use handlers of one kind, or "
            "start another worker"
        )
    try:
        if isinstance(theirs, AsyncRedisMessageQueue) or of_async or is_async(theirs):
            asyncio.run(_work_async(settings, handlers, theirs, report))
        else:
            _work_sync(settings, handlers, theirs, report)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return ExitStatus.TERMINATED
    return ExitStatus.OK


def _loaded_handler(reference: str, settings: WorkerSettings) -> Any:
    handler = load_reference("the handler", reference)
    check_handler(reference, handler, "a list of messages" if settings.run["batch_size"] else "one message")
    if settings.run["batch_size"] and isinstance(handler, Tasks | AsyncTasks):
        raise ConfigurationError(f"{reference} takes one message at a time; leave out --batch-size")
    return handler


def _work_sync(settings: WorkerSettings, handlers: Sequence[Any], theirs: Any, report: Report) -> None:
    with contextlib.ExitStack() as stack:
        queues: list[Any]
        if theirs is None:
            options, text = settings.queue_options(), not settings.payload_bytes
            queues = [stack.enter_context(one.open(text=text, **options)) for one in settings.queues]
        else:
            queues = [_checked(_made(theirs, settings), RedisMessageQueue, settings)]
        finish(_ping(queues[0]))
        activity = Activity()
        run = QueuesRun(THREADS, _shares(settings, queues, handlers, activity), **settings.run)

        def ping() -> None:
            finish(_ping(queues[0]))

        with _stopped_by_signals(run), _reporting(report, settings, queues, run, activity, ping):
            finish(run.run())
        report(finished=True)


async def _work_async(settings: WorkerSettings, handlers: Sequence[Any], theirs: Any, report: Report) -> None:
    async with contextlib.AsyncExitStack() as stack:
        queues: list[Any]
        if theirs is None:
            options, text = settings.queue_options(), not settings.payload_bytes
            queues = [await stack.enter_async_context(one.open_async(text=text, **options)) for one in settings.queues]
        else:
            made = _made(theirs, settings)
            queues = [_checked(await made if inspect.isawaitable(made) else made, AsyncRedisMessageQueue, settings)]
        await _ping(queues[0])
        activity, loop = Activity(), asyncio.get_running_loop()
        run = QueuesRun(TASKS, _shares(settings, queues, handlers, activity), **settings.run)

        def ping() -> None:
            asyncio.run_coroutine_threadsafe(_ping(queues[0]), loop).result(_PING_SECONDS)

        with _stopped_by_signals(run), _reporting(report, settings, queues, run, activity, ping):
            await run.run()
        report(finished=True)


async def _ping(queue: Any) -> None:
    """Reach the server of a queue. Any answer will do, also that this user may not ask."""
    part = queue._protocol.partition(0)
    await part.port.pipeline(part.keys.meta, (("PING",),))


def _shares(
    settings: WorkerSettings, queues: Sequence[Any], handlers: Sequence[Any], activity: Activity
) -> dict[Any, Share]:
    shares = (
        Share(_counted(handler, activity), weight) for handler, weight in zip(handlers, settings.weights, strict=True)
    )
    return dict(zip(queues, shares, strict=True))


@contextlib.contextmanager
def _reporting(
    report: Report,
    settings: WorkerSettings,
    queues: Sequence[Any],
    run: QueuesRun,
    activity: Activity,
    ping: Callable[[], None],
) -> Iterator[None]:
    """Tell the supervisor that this process is ready, and from then on what it does."""
    names = [queue._protocol.options.name for queue in queues]
    loops = [LoopWatch(queue._protocol) for queue in queues] if settings.is_watched else []
    contact = Contact(ping) if settings.is_watched else None
    address = settings.address or queues[0]._protocol.port.address
    report(ready=True, queues=names, address=address, files=own_files() if settings.reload else [])
    with Reporter(
        report,
        summaries=lambda: dict(zip(names, run.summaries(), strict=True)),
        activity=activity,
        loops=loops,
        contact=contact,
        with_files=settings.reload,
    ):
        yield


def _stopped_by_signals(run: QueuesRun) -> contextlib.AbstractContextManager[None]:
    """A block in which signals stop the loops, also those of a queue with an interrupt that is no signal.

    A second SIGTERM raises in the handlers, so that they can clean up before the process ends.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    return stopped_by_signals(run.stop)


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
            f"{settings.handlers[0]} is async and {settings.queue_object} is a sync queue; "
            "use redis_message_queue.asyncio.RedisMessageQueue, or a sync function"
        )
    raise ConfigurationError(
        f"--queue: {settings.queue_object} is of type {type(queue).__name__}; it must be a RedisMessageQueue of "
        "redis_message_queue or redis_message_queue.asyncio, or a function that returns one"
    )


def _counted(handler: Callable[[Any], Any], activity: Activity) -> Callable[[Any], Any]:
    """The handler, which is counted while it runs."""
    if is_async(handler):

        @functools.wraps(handler, updated=())
        async def call_async(received: Any) -> None:
            with activity.handling(_queue_of(received)):
                await handler(received)

        return call_async

    @functools.wraps(handler, updated=())
    def call(received: Any) -> Any:
        with activity.handling(_queue_of(received)):
            return handler(received)

    return call


def _queue_of(received: Any) -> str:
    first = received[0] if isinstance(received, list) else received
    name: str = first.queue
    return name


def check_handler(reference: str, handler: Any, argument: str) -> None:
    """Raise unless the handler can be called with one argument, and does its work when it is called."""
    if not callable(handler):
        raise ConfigurationError(
            f"the handler: {reference} is of type {type(handler).__name__}, which cannot be called"
        )
    function = _unwrapped(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"the handler: {reference} has a yield, so that calling it does nothing; use return")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # a function in C that does not tell
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"the handler: {reference}{signature} cannot be called with {argument} ({error}); "
            "it must take one positional argument"
        ) from None


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
        raise ConfigurationError(f"{name}: importing {module} raised {described(error)} ({place})") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{name}: {module} has no {path}")
        found = getattr(found, part)
    return found


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_async(function: Any) -> bool:
    """Return whether the function has to be awaited."""
    return is_async_function(_unwrapped(function))


if __name__ == "__main__":
    sys.exit(main())
