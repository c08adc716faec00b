"""Lets blocking code run inside the simulated loop: where it would block, the loop goes on with others.

The consumer group of streaming queries is written for threads. Here each runs in a greenlet, and its port hands every
awaitable to the task around it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from redis_message_queue.protocol.port import Argument, Call, Command
from simulator.port import SimulatedPort

T = TypeVar("T")


async def run_blocking(function: Callable[[], T]) -> T:
    """Call a blocking function and await what it waits for."""
    child = greenlet(function)
    child.gr_context = contextvars.copy_context()
    result = child.switch()
    while not child.dead:
        try:
            value = await result
        except BaseException as error:
            result = child.throw(error)
        else:
            result = child.switch(value)
    return result  # type: ignore[no-any-return]


def block_on(work: Awaitable[T]) -> T:
    """Inside a blocking function: wait for something."""
    parent = getcurrent().parent
    assert parent is not None
    return parent.switch(work)  # type: ignore[no-any-return]


class BlockingSimulatedPort:
    """The port of blocking code: like the library's sync port, it never suspends."""

    def __init__(self, port: SimulatedPort) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def sleep(self, seconds: float) -> None:
        block_on(self._port.sleep(seconds))

    async def connect(self) -> None:
        block_on(self._port.connect())

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        return block_on(self._port.call(command, extra_keys, arguments))

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        return block_on(self._port.call_both(first, second))

    async def pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        return block_on(self._port.pipeline(key, commands))

    async def wait(self, wakeup: str, seconds: float, *, punctual: bool = False) -> bool:
        return block_on(self._port.wait(wakeup, seconds, punctual=punctual))

    async def shielded(self, cancellations: list[BaseException], work: Coroutine[Any, Any, T]) -> T:
        return await work
