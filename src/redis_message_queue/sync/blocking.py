"""The methods of the asyncio queue as methods of the sync queue: with the same arguments, results and errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from redis_message_queue.protocol.consume.received_message import M
from redis_message_queue.protocol.operate.operator_methods import OperatorMethods
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.publish_methods import PublishMethods

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def blocking(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs an async one to its end. On a blocking port that never suspends."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return finish(method(self, *args, **kwargs))

    return call


class BlockingPublishMethods(Generic[M]):
    """The methods for producers."""

    publish = blocking(PublishMethods[M].publish)
    publish_many = blocking(PublishMethods[M].publish_many)
    submit = blocking(PublishMethods[M].submit)
    submit_many = blocking(PublishMethods[M].submit_many)


class BlockingOperatorMethods(Generic[M]):
    """The methods for operators, safe while others work on the queue."""

    stats = blocking(OperatorMethods[M].stats)
    peek = blocking(OperatorMethods[M].peek)
    records = blocking(OperatorMethods[M].records)
    get = blocking(OperatorMethods[M].get)
    cancel = blocking(OperatorMethods[M].cancel)
    trace = blocking(OperatorMethods[M].trace)
    why = blocking(OperatorMethods[M].why)
    purge = blocking(OperatorMethods[M].purge)
    redrive_dead_letters = blocking(OperatorMethods[M].redrive_dead_letters)
    redrive_failed = blocking(OperatorMethods[M].redrive_failed)
    pause = blocking(OperatorMethods[M].pause)
    resume = blocking(OperatorMethods[M].resume)
    is_paused = blocking(OperatorMethods[M].is_paused)
    paused_tenants = blocking(OperatorMethods[M].paused_tenants)
    schedule = blocking(OperatorMethods[M].schedule)
    schedules = blocking(OperatorMethods[M].schedules)
    unschedule = blocking(OperatorMethods[M].unschedule)
    grow_partitions = blocking(OperatorMethods[M].grow_partitions)
    workers = blocking(OperatorMethods[M].workers)
    tenants = blocking(OperatorMethods[M].tenants)
