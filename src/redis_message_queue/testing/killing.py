"""A child process that is killed at a chosen point of its work."""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
import pkgutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NoReturn

from redis_message_queue import checks
from redis_message_queue.asyncio.port import AsyncioPort
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, RehearsalError

_RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}

_LONGEST_STORY = 20_000  # a pipe holds 65,536 bytes, and nobody reads while the child lives


@dataclass
class Doom:
    """Where a child dies: at its nth `kill_here`, or when a function has returned for the nth time."""

    at: str | None = None
    after: str | Callable[..., Any] | None = None
    nth: int = 1
    _target: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.at is not None:
            checks.text("at", self.at)
        checks.whole_number("nth", self.nth)
        if self.after is not None:
            if self.at is not None:
                raise ConfigurationError("give at= (the name of a kill_here) or after= (a function), not both")
            self._target = _target_of(self.after)

    def __str__(self) -> str:
        if self.after is not None:
            name = self.after if isinstance(self.after, str) else getattr(self.after, "__qualname__", repr(self.after))
            return f"call {self.nth} of {name} had returned"
        return f"call {self.nth} of kill_here({'' if self.at is None else repr(self.at)})"

    def meet(self) -> None:
        """This was one of those calls."""
        self.nth -= 1
        if self.nth == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # the signal is on its way, and nothing more is to be done

    def lie_in_wait(self) -> None:
        """Meet every return of the function, wherever it is called from and by whatever name."""
        if self._target is not None:
            threading.setprofile(self._watch)
            sys.setprofile(self._watch)

    def _watch(self, frame: FrameType, event: str, argument: Any) -> None:
        # A coroutine that suspends "returns" as well, and so does a function that raises: the last step tells.
        if event == "return":
            if frame.f_code is self._target and frame.f_code.co_code[frame.f_lasti] in _RETURNS:
                self.meet()
        elif event == "c_return" and argument == self._target:
            self.meet()


def _target_of(after: Any) -> Any:
    """What the profiler will see of a function: its code, or the builtin itself."""
    function = after
    if isinstance(after, str):
        try:
            function = pkgutil.resolve_name(after)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(
                f"after={after!r} names nothing that can be imported ({error}); "
                "write it as 'package.module:function' or give the function itself"
            ) from error
    code = getattr(inspect.unwrap(getattr(function, "__func__", function), stop=_has_code), "__code__", None)
    if isinstance(code, CodeType):
        return code
    if inspect.isbuiltin(function):
        return function
    shown = repr(after) if isinstance(after, str) else type(after).__name__
    raise ConfigurationTypeError(f"after must be a function, a method or the name of one, not {shown}")


def _has_code(function: Any) -> bool:
    return hasattr(function, "__code__")


class _Stage:
    """What a call of `kill_here` means now."""

    def __init__(self) -> None:
        self.doom: Doom | None = None  # in a child
        self.survived = 0  # how many redeliveries are under way, in the process of the test


_stage = _Stage()


def kill_here(point: str | None = None) -> None:
    """The end of the process, by SIGKILL, when `kill_and_redeliver` runs this for the first time.

    When it delivers the message again, nothing happens here. With a name, ``at=`` can choose among several points.
    Called by anybody else it raises: it is for handlers of tests, not for production.
    """
    doom = _stage.doom
    if doom is not None:
        if doom.after is None and (doom.at is None or doom.at == point):
            doom.meet()
    elif not _stage.survived:
        raise RehearsalError(
            "kill_here() was called outside of kill_and_redeliver(queue, handler); "
            "give the handler to that function, or take the call out of it"
        )


@contextlib.contextmanager
def surviving() -> Iterator[None]:
    """In this block `kill_here` lets everything pass."""
    _stage.survived += 1
    try:
        yield
    finally:
        _stage.survived -= 1


class DoomedChild:
    """A forked process that does some work and must die of it."""

    def __init__(self, work: Callable[[Callable[[str], None]], None], doom: Doom) -> None:
        self._doom = doom
        self._reading_end, writing_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Of threads in the parent: the child runs one piece of work and is gone.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reading_end)
            _live(work, doom, writing_end)
        os.close(writing_end)
        self._status: int | None = None

    def has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def kill(self) -> None:
        """Whatever it is doing; without that it would outlive the test."""
        if not self.has_ended():
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitpid(self._pid, 0)[1]

    def close(self) -> None:
        self.kill()
        os.close(self._reading_end)

    def last_words(self) -> list[str]:
        """What it noted, and how its work ended if it did; an error if it did not die where it should."""
        assert self._status is not None
        words, _, story = self._notes().partition("\0")
        if os.WIFSIGNALED(self._status) and os.WTERMSIG(self._status) == signal.SIGKILL and not story:
            return words.splitlines()
        if os.WIFSIGNALED(self._status):
            story = f"died of signal {os.WTERMSIG(self._status)}"
        raise RehearsalError(
            f"the handler was to be killed when {self._doom}, and it {story.strip() or 'left by itself'}"
        )

    def _notes(self) -> str:
        """All that is there, without waiting: a process that the handler has started may hold the other end open."""
        os.set_blocking(self._reading_end, False)
        notes = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._reading_end, 65_536):
                notes += part
        return notes.decode()


def _live(work: Callable[[Callable[[str], None]], None], doom: Doom, writing_end: int) -> NoReturn:
    """The life of the child. It must not get back into the test, so it ends here whatever happens."""
    try:
        try:
            setattr(AsyncioPort, "inherit", _connect_anew)  # noqa: B010  mypy knows it as a method
            _stage.doom, _stage.survived = doom, 0
            doom.lie_in_wait()
            work(lambda note: _write(writing_end, note + "\n"))
            story = "returned before that"
        except BaseException:
            sys.setprofile(None)
            story = f"raised before that:\n{traceback.format_exc()[-_LONGEST_STORY:]}"
        sys.setprofile(None)
        _write(writing_end, f"\0{story}")
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(0)


def _write(descriptor: int, text: str) -> None:
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(descriptor, data) :]


def _connect_anew(port: Any) -> None:
    """Connections of an asyncio client belong to the parent. A child that is soon to die takes fresh ones."""
    client = port._client
    pool = client.connection_pool
    if vars(pool).get("_made_in") != os.getpid():
        client.connection_pool = type(pool)(connection_class=pool.connection_class, **pool.connection_kwargs)
        client.connection_pool._made_in = os.getpid()
        # Were they collected, they would leave the parent's selector, which both processes share, and the parent
        # would wait for ever for answers that are there.
        client.connection_pool._left_to_the_parent = pool
    port.start_over()
