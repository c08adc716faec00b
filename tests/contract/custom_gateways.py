"""Custom gateways that record each call and return what the test wants."""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.shells import (
    LIMIT_SECONDS,
    Shell,
    until,
)

LONG = 4 * LIMIT_SECONDS  # a wait that no test sits out

OPERATIONS = (
    *("publish_message", "add_message", "wait_for_message_and_move", "remove_message", "move_message"),
    *("trim_queue", "renew_message_lease"),
)

LEASED = {"message_visibility_timeout_seconds": 60}

BEATS = {"heartbeat_interval_seconds": 0.02}


class Core:
    """What is behind every custom gateway here: it notes each call, and answers as it is told to."""

    def __init__(self, *line: Any, **answers: Any) -> None:
        self.line = list(line)  # what is handed over, in turn
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def do(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.calls.append((name, *arguments, *([named] if named else [])))
        if name in self.answers:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments, **named) if callable(answer) else answer
        if name == "wait_for_message_and_move":
            return self.line.pop(0) if self.line else None
        return None if name in ("add_message", "trim_queue") else True

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def count(self, name: str) -> int:
        return self.names.count(name)


def custom(shell: Shell, core: Core, **body: Any) -> Any:
    """A sync or async gateway over the core; `body` is what else its class should have."""

    def operation(name: str) -> Callable[..., Any]:
        def plain(self: Any, *arguments: Any, **named: Any) -> Any:
            return core.do(name, *arguments, **named)

        async def awaited(self: Any, *arguments: Any, **named: Any) -> Any:
            return await done(core.do(name, *arguments, **named))

        return plain if shell.name == "sync" else awaited

    operations = {name: operation(name) for name in OPERATIONS}
    return type("CustomGateway", (shell.module.AbstractRedisGateway,), operations | body)()


async def done(result: Any) -> Any:
    """The result of a sync or an async operation."""
    return await result if inspect.isawaitable(result) else result


class Door:
    """An operation that is under way until the test opens it."""

    def __init__(self, shell: Shell, answer: Any = True) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        self.is_passed = False
        self._answer = answer
        self._pass = self._blocking if shell.name == "sync" else self._awaited

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.reached.set()
        return self._pass()

    def _blocking(self) -> Any:
        self._opened.wait(LIMIT_SECONDS)
        return self._outcome()

    async def _awaited(self) -> Any:
        await until(self._opened.is_set)
        return self._outcome()

    def _outcome(self) -> Any:
        self.is_passed = True
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def open(self) -> None:
        self._opened.set()


HELD = {"lease_token": None}

HOLDS = pytest.mark.parametrize(
    "settings", [{}, {"message_visibility_timeout_seconds": 300}], ids=["without leases", "leased"]
)


def built_in(shell: Shell, **settings: Any) -> Any:
    """A RedisGateway that does not wait unless told to."""
    return shell.gateway(**{"message_wait_interval_seconds": 0} | settings)


def remains(shell: Shell, queue: Any) -> set[bytes]:
    """The keys of a queue besides its wake-up key, its replies, and the records beside a list that is there."""
    prefix = f"{queue.key.prefix}{queue.key.separator}"
    keys = shell.redis.keys("*")
    records = tuple(queue.key.records(key.decode()).encode() for key in keys)
    spared = tuple(f"{prefix}{word}".encode() for word in ("wakeup", "reply", "meta"))
    return {key for key in keys if not key.startswith(spared) and key not in records}


def overriding(shell: Shell, *names: str, by: str = "class", called: list[str] | None = None, **settings: Any) -> Any:
    """A RedisGateway that notes the calls of some operations and leaves the work to the built-in ones."""
    noted = [] if called is None else called

    def override(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def plain(*arguments: Any, **named: Any) -> Any:
            noted.append(name)
            return usual(arguments[0])(*arguments[1:], **named)

        async def awaited(*arguments: Any, **named: Any) -> Any:
            return await plain(*arguments, **named)

        return plain if shell.name == "sync" else awaited

    settings = {"message_wait_interval_seconds": 0} | settings
    if by == "object":
        gateway = shell.gateway(**settings)
        for name in names:
            usual = getattr(gateway, name)
            bound = override(name, lambda self, usual=usual: usual)
            setattr(gateway, name, functools.partial(bound, gateway))
        return gateway
    made = type("Overriding", (shell.module.RedisGateway,), {})
    for name in names:
        setattr(made, name, override(name, lambda self, name=name: getattr(super(made, self), name)))
    return made(**{"redis_client": shell.client} | settings)
