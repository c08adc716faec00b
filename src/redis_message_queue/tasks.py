"""Tasks: functions that a program publishes as messages, and that a worker calls.

tasks = Tasks(RedisMessageQueue("tasks", client=client))

@tasks.task
def send_mail(customer: int, subject: str = "hello") -> None: ...

send_mail.publish(42)     # checked by type checkers like a call
tasks.queue.run(tasks)    # or: rmq worker shop:tasks
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

from redis_message_queue.asyncio.message_queue import RedisMessageQueue as AsyncRedisMessageQueue
from redis_message_queue.protocol.consume.received_message import ReceivedMessage
from redis_message_queue.stored.codecs import Codec, codec_for, decode_with, encode_with
from redis_message_queue.stored.envelope import check_native
from redis_message_queue.sync.message_queue import RedisMessageQueue
from redis_message_queue.values.checks import plain_function, refuse_unknown, required_function, text
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    PayloadTypeError,
    PublishNotConfirmedError,
)
from redis_message_queue.values.outcomes import DeadLetter
from redis_message_queue.values.plain_values import brief, error_text

__all__ = ["AsyncTask", "AsyncTasks", "Task", "Tasks"]

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(TypedDict, total=False):
    """How a task is published: arguments of `RedisMessageQueue.publish`, with the same meaning."""

    tenant: str | None
    delay_seconds: float | None
    at: datetime | None
    headers: Mapping[str, str] | None
    deduplication_key: str | None
    ttl_seconds: float | None
    partition_key: str | None
    repeat_of: PublishNotConfirmedError | None
    timeout_seconds: float | None


class _PublishableFunction(Generic[P, R]):
    """A function with a name that messages can use."""

    def __init__(self, queue: Any, function: Callable[P, R], name: str, codec: Codec[Any] | None) -> None:
        functools.update_wrapper(self, function)
        self.name, self.function = name, function
        self._queue, self._codec, self._signature = queue, codec, inspect.signature(function)
        self._options: TaskOptions = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def with_options(self, **options: Unpack[TaskOptions]) -> Self:
        """Return this task as it is published with these options: ``send.with_options(tenant="acme").publish(42)``.

        Args:
            options: Arguments of `RedisMessageQueue.publish`: ``tenant``, ``delay_seconds``, ``at``, ``headers``,
                ``deduplication_key``, ``ttl_seconds``, ``partition_key``, ``repeat_of``, ``timeout_seconds``.

        Raises:
            ConfigurationTypeError: There is no such option.
        """
        refuse_unknown("with_options", options, TaskOptions.__annotations__)
        changed = copy.copy(self)
        changed._options = {**self._options, **options}
        return changed

    def _message(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the message for a call; raise if the function could not be called like that."""
        bound = self._signature.bind(*args, **kwargs)
        if self._codec is None:
            call = {"task": self.name, "args": list(args), "kwargs": kwargs}
            check_native(call)
            return call
        bound.apply_defaults()
        (argument,) = bound.arguments.values()
        try:
            return {"task": self.name, "argument": encode_with(self._codec, argument).decode()}
        except UnicodeDecodeError:
            raise PayloadTypeError(
                f"task {self.name!r}: {type(self._codec).__name__} does not write text; use a codec that writes JSON"
            ) from None

    def _run(self, call: Mapping[str, Any]) -> Any:
        """Call the function as a message says; a message that does not fit it is a dead letter."""
        try:
            if self._codec is None:
                args, kwargs = call["args"], call["kwargs"]
            else:
                args, kwargs = [decode_with(self._codec, call["argument"].encode())], {}
            self._signature.bind(*args, **kwargs)
        except Exception as error:
            why = error_text(error) if isinstance(error, TypeError) and self._codec is None else type(error).__name__
            raise DeadLetter(f"the message does not fit task {self.name!r}: {why}") from error
        return self.function(*args, **kwargs)


class Task(_PublishableFunction[P, R]):
    """A function that can be published."""

    def publish(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Publish a call of the function. Returns True, or False if deduplication suppressed it.

        Args:
            args: Arguments of the function, of values that JSON represents exactly.
            kwargs: More of them.

        Raises:
            TypeError: The function cannot be called like this; nothing was sent.
            Exception: What `RedisMessageQueue.publish` raises.
        """
        published: bool = self._queue.publish(self._message(args, kwargs), **self._options)
        return published


class AsyncTask(_PublishableFunction[P, R]):
    """A function that can be published in an event loop."""

    async def publish(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Publish a call of the function, as `Task.publish` does."""
        published: bool = await self._queue.publish(self._message(args, kwargs), **self._options)
        return published


class _Registry:
    """The tasks of an application by their names. Messages can call these functions, and nothing else."""

    _queue_kind: type[Any]

    def __init__(self, queue: Any) -> None:
        if not isinstance(queue, self._queue_kind):
            raise ConfigurationTypeError(
                f"queue must be a RedisMessageQueue of {self._queue_kind.__module__.rpartition('.')[0]}, "
                f"not {brief(queue)}"
            )
        self.queue = queue
        self._known: dict[str, Any] = {}

    def _register(self, kind: Any, function: Any, name: str | None, codec: Any) -> Any:
        if function is None:
            return functools.partial(self._register, kind, name=name, codec=codec)
        required_function("a task", function)
        if kind is Task:
            plain_function("a task", function)
        name = function.__name__ if name is None else name
        text("name", name)
        known = self._known.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise ConfigurationError(f"there is another task {name!r} already; pass name= to one of them")
        task = kind(self.queue, function, name, codec_for(codec))
        if codec is not None and len(task._signature.parameters) != 1:
            raise ConfigurationError(f"task {name!r} has a codec, so it must have one parameter: the decoded object")
        self._known[name] = task
        return task

    def _call(self, message: ReceivedMessage) -> Any:
        try:
            call = json.loads(message.payload)
            name = call["task"]
        except (ValueError, TypeError, LookupError):
            raise DeadLetter("the message is no call of a task") from None
        task = self._known.get(name) if isinstance(name, str) else None
        if task is None:
            raise DeadLetter(f"unknown task {brief(name)}: no module that this worker has imported defines it")
        return task._run(call)


class Tasks(_Registry):
    """The tasks of a queue; called with a message, it calls the function that the message names.

    Args:
        queue: Where to publish the tasks. Its options decide on leases, retries, deduplication and so on.

    Raises:
        ConfigurationTypeError: It is no sync queue.
    """

    queue: RedisMessageQueue[Any]
    _queue_kind = RedisMessageQueue

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, function: None = None, /, *, name: str | None = None, codec: Any = None
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, /, *, name: str | None = None, codec: Any = None) -> Any:
        """Make a function publishable: ``@tasks.task``, or ``@tasks.task(name="mail")``.

        Args:
            function: The function.
            name: What messages call it; by default its own name. Keep it as long as such messages may be waiting.
            codec: For a function of one parameter, how its argument is written: a dataclass, another type, or a codec
                that writes text, as for `RedisMessageQueue`. Without it, arguments are JSON.

        Raises:
            ConfigurationError: The function is async, its name is taken, or the codec does not fit it.
        """
        return self._register(Task, function, name, codec)

    def __call__(self, message: ReceivedMessage) -> Any:
        """Call the function that a message names: the handler for `run`. An unknown one is a dead letter."""
        return self._call(message)


class AsyncTasks(_Registry):
    """The same for a queue of `redis_message_queue.asyncio`; its functions may be async.

    Args:
        queue: Where to publish the tasks.

    Raises:
        ConfigurationTypeError: It is no asyncio queue.
    """

    queue: AsyncRedisMessageQueue[Any]
    _queue_kind = AsyncRedisMessageQueue

    @overload
    def task(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...
    @overload
    def task(
        self, function: None = None, /, *, name: str | None = None, codec: Any = None
    ) -> Callable[[Callable[P, R]], AsyncTask[P, R]]: ...
    def task(self, function: Any = None, /, *, name: str | None = None, codec: Any = None) -> Any:
        """Make a function publishable, as `Tasks.task` does."""
        return self._register(AsyncTask, function, name, codec)

    async def __call__(self, message: ReceivedMessage) -> Any:
        """Call the function that a message names, and await it if it is async."""
        result = self._call(message)
        return await result if inspect.isawaitable(result) else result
