"""How a publish is known to be safe: replicas or the disk say that they have it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redis_message_queue.envelope import ID_BYTES
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, PublishNotConfirmedError
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls, Slot
from redis_message_queue.protocol.port import Argument, Command

FULL = b"-"  # the answer to a publish that was refused because there is no room


@dataclass(slots=True, eq=False)
class Sent:
    """A publish as it went out: what it takes to send the very same once more."""

    slot: Slot
    command: Command
    arguments: tuple[Argument, ...]
    open_keys: tuple[str, ...]
    at: float
    owner: object  # the calls whose slot it is
    ids: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    answer: Any = None  # what the server said to it last
    told: frozenset[str] = frozenset()  # the dropped messages that the user has heard of
    settled: bool = False  # confirmed, or given up: its slot is in other hands
    repeating: bool = False

    def news(self) -> tuple[str, ...]:
        """Who had to leave for it, as far as that was not told yet."""
        dropped = dropped_ids(self.answer[len(self.ids) :]) if isinstance(self.answer, bytes) else ()
        news = tuple(each for each in dropped if each not in self.told)
        self.told |= frozenset(news)
        return news


class Confirmer:
    """Asks for confirmation of what was published, as far as the queue's options want it.

    ``WAIT`` and ``WAITAOF`` speak of the last write of their own connection, and a pool gives out any connection. So
    the publish is sent once more, on the connection that asks: its number makes that harmless, and the script
    answers a repetition with a small write of its own. A primary that was lost in between has published it anew.
    """

    def __init__(self, calls: Calls) -> None:
        options = calls.options
        self._calls = calls
        self._replicas = options.confirm_replicas or 0
        self._fsync = options.confirm_fsync
        self._patience = options.confirm_timeout_seconds
        self._checked = not self._fsync
        self._lock = calls.port.lock()
        self.wanted = _is_wanted(options)
        timeout = calls.port.socket_timeout
        # The server answers at the end of its time, and the socket must still be listening then.
        self._slice = self._patience if timeout is None else min(self._patience, 0.8 * timeout)

    async def refuse_if_impossible(self) -> None:
        """Find out before anything is written whether this server can confirm what it is asked to."""
        if self._checked:
            return
        question = (self._question(0.001),)
        (answer,) = await self._calls.retry(lambda: self._converse(self._calls.keys.pending, question), "confirm")
        if isinstance(answer, Exception):
            raise ConfigurationError(
                f"confirm_fsync needs a server with WAITAOF (Redis 7.2, Valkey 7.2 or newer) and appendonly yes; "
                f"this one says: {answer}"
            ) from answer
        self._checked = True

    async def confirm(self, sent: Sent) -> Any:
        """The answer to the publish, when enough of them have it; else an error with which it can be repeated."""
        port = self._calls.port
        deadline = port.now() + self._patience
        while True:
            left = deadline - port.now()
            try:
                published, have = await self._ask(sent, max(left, 0.0))
            except Exception as error:
                raise self._unconfirmed(sent, f"asking failed ({type(error).__name__})") from error
            sent.answer, sent.at = published, port.now()  # the repetition has renewed Redis's memory of the call
            if published == FULL or self._is_enough(have):  # what was promoted meanwhile may have no room for it
                sent.settled = True
                return published
            if port.now() >= deadline:
                raise self._unconfirmed(sent, self._shortfall(have))

    def repeatable(self, error: PublishNotConfirmedError, payloads: list[bytes]) -> Sent:
        """What the error remembers, if it is ours to repeat and Redis cannot have forgotten the call."""
        if not isinstance(error, PublishNotConfirmedError):
            raise ConfigurationTypeError(f"repeat_of must be a PublishNotConfirmedError, not {type(error).__name__}")
        calls, sent = self._calls, error.sent
        if not isinstance(sent, Sent) or sent.owner is not calls or not calls.owns(sent.slot):
            raise ConfigurationError("repeat_of is an error of another queue object; repeat it there")
        if sent.payloads != payloads:
            raise ConfigurationError("repeat_of is the error of another message; pass the one that it was raised for")
        if sent.repeating:
            raise ConfigurationError("repeat_of is being repeated at this moment; wait for that")
        if sent.settled:
            raise ConfigurationError("repeat_of was repeated and confirmed already; there is nothing left to do")
        age, longest = calls.port.now() - sent.at, calls.keep_seconds / 2
        if age > longest:
            raise ConfigurationError(
                f"repeat_of is {age:.0f} s old, and after {longest:.0f} s Redis may have forgotten the call; "
                "look whether the message is there before you publish it anew"
            )
        return sent

    def begin(self, sent: Sent) -> None:
        """Of two threads that repeat it at the same time, one: both would give its slot back."""
        with self._lock:
            if sent.repeating or sent.settled:
                raise ConfigurationError("repeat_of is being repeated at this moment; wait for that")
            sent.repeating = True

    async def _ask(self, sent: Sent, left: float) -> tuple[Any, Any]:
        again = sent.command.spelled_out(sent.open_keys, sent.arguments)
        question = self._question(min(left, self._slice))
        published, have = await self._calls.retry(
            lambda: self._converse(sent.slot.key, (again, question)), "confirm", budget=left
        )
        for answer in (published, have):
            if isinstance(answer, Exception):
                raise answer
        return published, have

    async def _converse(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        """LOADING, READONLY and the like are answers, and say no more than a broken connection does."""
        answers = await self._calls.port.converse(key, commands)
        for answer in answers:
            if isinstance(answer, Exception) and self._calls.port.is_transient(answer):
                raise answer
        return answers

    def _question(self, seconds: float) -> tuple[Argument, ...]:
        milliseconds = max(1, int(seconds * 1000))  # 0 would mean for ever
        if self._fsync:
            return ("WAITAOF", 1, self._replicas, milliseconds)
        return ("WAIT", self._replicas, milliseconds)

    def _is_enough(self, have: Any) -> bool:
        if self._fsync:
            local, replicas = have
            return bool(local >= 1 and replicas >= self._replicas)
        return bool(have >= self._replicas)

    def _shortfall(self, have: Any) -> str:
        if not self._fsync:
            return f"{have} of {self._replicas} replicas have it"
        local, replicas = have
        return f"fsync {'done' if local else 'not done'}, {replicas} of {self._replicas} replicas have it on disk"

    def _unconfirmed(self, sent: Sent, shortfall: str) -> PublishNotConfirmedError:
        error = PublishNotConfirmedError(
            f"the message was published and not confirmed within {self._patience} s ({shortfall}); it may still be "
            "there and be delivered: publish(message, repeat_of=error) asks again and never doubles it",
            message_id=sent.ids[0].hex(),
            operation="publish",
        )
        error.sent = sent
        error.dropped = sent.news()
        return error


def dropped_ids(ids: bytes) -> tuple[str, ...]:
    """The messages that a publish names at the end of its answer because they had to leave for it."""
    width = ID_BYTES
    return tuple(ids[at : at + width].hex() for at in range(0, len(ids), width))


def _is_wanted(options: GatewayOptions) -> bool:
    return options.confirm_replicas is not None or options.confirm_fsync
