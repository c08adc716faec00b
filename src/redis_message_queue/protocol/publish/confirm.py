"""Waits until replicas, or the disk, have what was published."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis_message_queue.protocol.calls import SHORTEST_ATTEMPT_SECONDS, Calls, ReplySlot
from redis_message_queue.protocol.port import Argument, AttemptEnd, Command
from redis_message_queue.stored.envelope import ID_BYTES
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, PublishNotConfirmedError

FULL = b"-"  # the reply to a publish that was refused because the queue is full


@dataclass(slots=True, eq=False)
class Sent:
    """A publish as it was sent, so that the same call can be sent once more."""

    slot: ReplySlot
    command: Command
    arguments: tuple[Argument, ...]
    extra_keys: tuple[str, ...]
    at: float
    owner: object  # the `Calls` that the slot belongs to
    ids: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    answer: Any = None  # the server's last reply
    reported: frozenset[str] = frozenset()  # the dropped messages that the user knows of
    settled: bool = False  # confirmed, or refused: its slot is free
    repeating: bool = False

    def new_dropped(self) -> tuple[str, ...]:
        """Return the messages that were dropped to make room, without those that were reported before."""
        dropped = dropped_ids(self.answer[len(self.ids) :]) if isinstance(self.answer, bytes) else ()
        new = tuple(each for each in dropped if each not in self.reported)
        self.reported |= frozenset(new)
        return new


class Confirmer:
    """Confirms what was published, if the queue's options ask for it.

    ``WAIT`` and ``WAITAOF`` are about the last write of their own connection, and a pool gives out any connection. So
    the publish is sent once more, on the connection that waits. Its number makes that harmless, and the script answers
    a repeated call with a small write of its own. If the primary was lost in between, the new one publishes it again.
    """

    def __init__(self, calls: Calls) -> None:
        options = calls.options
        self._calls = calls
        self._replicas = options.confirm_replicas or 0
        self._fsync = options.confirm_fsync
        self._timeout = options.confirm_timeout_seconds
        self._checked = not self._fsync  # whether the server is known to have WAITAOF
        self._lock = calls.port.lock()
        self.wanted = options.confirm_replicas is not None or options.confirm_fsync
        timeout = calls.port.socket_timeout
        # The server answers when its time is up, and the socket must still be open for the answer then.
        self._slice = self._timeout if timeout is None else min(self._timeout, 0.8 * timeout)

    async def refuse_if_impossible(self, limit: float | None) -> None:
        """Raise, before anything is written, if this server cannot confirm what the options ask for."""
        if self._checked:
            return
        wait = (self._wait_command(0.001),)
        ask = partial(self._pipeline, self._calls.keys.pending, wait)
        (answer,) = await self._calls.retry(ask, "confirm", limit=limit)
        if isinstance(answer, Exception):
            raise ConfigurationError(
                f"confirm_fsync needs a server with WAITAOF (Redis 7.2, Valkey 7.2 or newer) and appendonly yes; "
                f"this one says: {answer}"
            ) from answer
        self._checked = True

    async def confirm(self, sent: Sent, limit: float | None = None) -> Any:
        """Return the reply to the publish as soon as it is confirmed; else raise an error that `repeat_of` takes."""
        port = self._calls.port
        seconds = self._timeout if limit is None else min(self._timeout, max(0.0, limit - port.now()))
        deadline = port.now() + seconds
        while True:
            left = deadline - port.now()
            try:
                with AttemptEnd(None if limit is None else limit + SHORTEST_ATTEMPT_SECONDS):
                    published, have = await self._send_and_wait(sent, max(left, 0.0))
            except Exception as error:
                raise self._unconfirmed(sent, seconds, f"asking failed ({type(error).__name__})") from error
            sent.answer, sent.at = published, port.now()  # sending it again has made Redis remember the call for longer
            if published == FULL or self._is_enough(have):  # on a replica that was promoted the queue may be full
                sent.settled = True
                return published
            if port.now() >= deadline:
                raise self._unconfirmed(sent, seconds, self._shortfall(have))

    def repeatable(self, error: PublishNotConfirmedError, payloads: list[bytes]) -> Sent:
        """Return the publish that the error is about, if it is ours and Redis still remembers the call; else raise."""
        if not isinstance(error, PublishNotConfirmedError):
            raise ConfigurationTypeError(f"repeat_of must be a PublishNotConfirmedError, not {type(error).__name__}")
        calls, sent = self._calls, error.sent
        if not isinstance(sent, Sent) or sent.owner is not calls or not calls.owns(sent.slot):
            raise ConfigurationError("repeat_of is an error of another queue object; repeat it there")
        if sent.payloads != payloads:
            raise ConfigurationError("repeat_of is the error of another message; pass the one that it was raised for")
        if sent.repeating:
            raise ConfigurationError("another thread is already repeating this publish; wait for it to finish")
        if sent.settled:
            raise ConfigurationError("repeat_of was repeated and confirmed already; there is nothing left to do")
        age, longest = calls.port.now() - sent.at, calls.keep_seconds / 2
        if age > longest:
            raise ConfigurationError(
                f"repeat_of is {age:.0f} s old, and after {longest:.0f} s Redis may have forgotten the call; "
                "check whether the message is there before you publish it again"
            )
        return sent

    def begin(self, sent: Sent) -> None:
        """Let only one of two threads repeat it at the same time: both would release its slot."""
        with self._lock:
            if sent.repeating or sent.settled:
                raise ConfigurationError("another thread is already repeating this publish; wait for it to finish")
            sent.repeating = True

    async def _send_and_wait(self, sent: Sent, left: float) -> tuple[Any, Any]:
        again = sent.command.spelled_out(sent.extra_keys, sent.arguments)
        wait = self._wait_command(min(left, self._slice))
        published, have = await self._calls.retry(
            lambda: self._pipeline(sent.slot.key, (again, wait)), "confirm", budget=left
        )
        for answer in (published, have):
            if isinstance(answer, Exception):
                raise answer
        return published, have

    async def _pipeline(self, key: str, commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
        """LOADING, READONLY and the like are answers, and say no more than a broken connection does."""
        answers = await self._calls.port.pipeline(key, commands)
        for answer in answers:
            if isinstance(answer, Exception) and self._calls.port.is_transient(answer):
                raise answer
        return answers

    def _wait_command(self, seconds: float) -> tuple[Argument, ...]:
        milliseconds = max(1, int(seconds * 1000))  # 0 would mean forever
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

    def _unconfirmed(self, sent: Sent, seconds: float, shortfall: str) -> PublishNotConfirmedError:
        error = PublishNotConfirmedError(
            f"the message was published and not confirmed within {round(seconds, 3)} s ({shortfall}); it may still be "
            "there and be delivered: publish(message, repeat_of=error) asks again and never stores it twice",
            message_id=sent.ids[0].hex(),
            operation="publish",
        )
        error.sent = sent
        error.dropped = sent.new_dropped()
        return error


def dropped_ids(ids: bytes) -> tuple[str, ...]:
    """Return the ids of dropped messages, which stand one after the other at the end of a reply."""
    return tuple(ids[at : at + ID_BYTES].hex() for at in range(0, len(ids), ID_BYTES))
