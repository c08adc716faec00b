"""The stop signals that a consumer checks between two claims."""

import inspect
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Protocol

from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief, plain

_Disposition = Callable[[int, FrameType | None], Any] | int | None

# Windows has no SIGHUP.
DEFAULT_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_UNCATCHABLE = {getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name)}


class BaseGracefulInterruptHandler(ABC):
    """Subclass this to stop consumers in your own way."""

    @abstractmethod
    def is_interrupted(self) -> bool:
        """Whether consumers should stop. Called often and from any thread, so it must return at once."""


class _HasIsSet(Protocol):
    def is_set(self) -> bool: ...


class EventDrivenInterruptHandler(BaseGracefulInterruptHandler):
    """Stops consumers when you set an event: a threading, asyncio or multiprocessing Event.

    Use it when a framework owns the signals of the process, and set the event in its shutdown hook.
    """

    def __init__(self, event: _HasIsSet) -> None:
        is_set = getattr(event, "is_set", None)
        # A class would fail at the first check. A coroutine is always true, and would stop the consumer at once.
        if isinstance(event, type) or not callable(is_set) or inspect.iscoroutinefunction(is_set):
            raise ConfigurationTypeError(
                f"event must be an object with a plain is_set() method, not {brief(event)}; "
                "pass a threading.Event(), an asyncio.Event() or a multiprocessing.Event()"
            )
        self._event = event

    def is_interrupted(self) -> bool:
        return bool(self._event.is_set())


class GracefulInterruptHandler(BaseGracefulInterruptHandler):
    """Stops consumers on the first SIGINT, SIGTERM or SIGHUP; the same signal again has its default effect.

    The first signal only sets a flag, so work in progress finishes. The same signal a second time has its
    default effect: KeyboardInterrupt for Ctrl+C, the end of the process for SIGTERM. Each signal counts
    separately, because supervisors send SIGTERM along with a terminal's SIGINT or their own SIGHUP. (Linux
    ignores default actions for PID 1, so a second SIGTERM does not end a container without an init.)

    Signals belong to the process. Without ``signals``, those that the process ignores, as SIGHUP under nohup
    or SIGINT in a background job, stay ignored, and those with a handler that was installed outside Python
    stay with it. All others must have Python's default handler, and so must all ``signals`` that you name;
    otherwise nothing is installed, and a ConfigurationError (a ValueError) says which one is taken. Construct
    it in the main thread, before `asyncio.run` takes SIGINT.
    """

    def __init__(self, signals: Iterable[int] = DEFAULT_SIGNALS) -> None:
        # No threading.Event: a signal handler that waits for a lock of its own thread never returns.
        self._received: set[int] = set()
        chosen = _checked(signals)
        if signals is DEFAULT_SIGNALS:
            chosen = [signum for signum in chosen if _is_ours_to_take(signum)]
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "GracefulInterruptHandler must be constructed in the main thread, the only one that may "
                "install signal handlers; construct it there and pass it to this thread"
            )
        self._former = {signum: _default_of(signum) for signum in chosen}
        try:
            for signum in chosen:
                signal.signal(signum, self._on_signal)
        except BaseException:  # Ctrl+C between two installations, too
            self.reset()
            raise

    def is_interrupted(self) -> bool:
        """Whether one of the signals has arrived. Once True, it stays True."""
        return bool(self._received)

    def reset(self) -> None:
        """Restore the default handlers, except for signals that have a different handler by now.

        You can call this any number of times, in the main thread. It does not change `is_interrupted()`: a
        stopped loop stays stopped. In a forked child, call it on the inherited handler and then construct a
        new one; the parent keeps its own. The inherited handler alone reports a signal that reached the child
        before that.
        """
        for signum, former in self._former.items():
            if signal.getsignal(signum) == self._on_signal:
                signal.signal(signum, former)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum not in self._received:
            self._received.add(signum)
            return
        act_as_before(signum, self._former[signum], frame)


def act_as_before(signum: int, former: _Disposition, frame: FrameType | None) -> None:
    """Restore the former handler of a signal that has come, and let it have its effect."""
    signal.signal(signum, former)
    if callable(former):
        former(signum, frame)
    else:
        os.kill(os.getpid(), signum)  # to the process, since this thread may have the signal blocked


def _checked(signals: Iterable[int]) -> list[int]:
    if isinstance(signals, str | bytes) or not isinstance(signals, Iterable):
        raise ConfigurationTypeError(f"signals must be a collection such as (signal.SIGTERM,), not {brief(signals)}")
    chosen = list(signals)
    for signum in chosen:
        if isinstance(signum, bool) or not isinstance(signum, int):
            raise ConfigurationTypeError(f"signals must contain signals such as signal.SIGTERM, not {brief(signum)}")
        if signum not in signal.valid_signals() - _UNCATCHABLE:
            raise ConfigurationError(f"signals: {_name(signum)} cannot be handled on this platform; leave it out")
    if not chosen:
        raise ConfigurationError("signals must not be empty; name at least one, such as (signal.SIGTERM,)")
    return list(dict.fromkeys(chosen))


def _is_ours_to_take(signum: int) -> bool:
    """Whether nobody outside this program has decided about the signal: its starter, or code in C."""
    return signal.getsignal(signum) not in (signal.SIG_IGN, None)


def _default_of(signum: int) -> _Disposition:
    """The signal's current handler, which must be Python's default."""
    current = signal.getsignal(signum)
    if current == signal.SIG_DFL or (signum == signal.SIGINT and current is signal.default_int_handler):
        return current
    raise ConfigurationError(f"signals: {_name(signum)} {_why_taken(current)}")


def _why_taken(current: _Disposition) -> str:
    if isinstance(getattr(current, "__self__", None), GracefulInterruptHandler):
        return (
            "already belongs to another GracefulInterruptHandler; share that one, or call its reset() first "
            "(in a forked child, on the one inherited from the parent)"
        )
    if current == signal.SIG_IGN:
        return "is ignored in this process, as under nohup or in a background job; leave it out"
    owner = "a handler installed outside Python" if current is None else repr(current)
    return (
        f"already has a handler: {owner}; leave it out, or let that handler set an event and use "
        "EventDrivenInterruptHandler(event) (asyncio.run takes SIGINT: construct before it)"
    )


def _name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {brief(plain(signum))}"
