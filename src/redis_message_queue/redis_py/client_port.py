"""The part of a port that the sync and the async package share."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from redis import exceptions

from redis_message_queue.process.identity import process, restart_ids
from redis_message_queue.protocol.port import Argument, Call, Command, attempt_ends_at
from redis_message_queue.redis_py import attempt_limits, wire
from redis_message_queue.redis_py.attempt_limits import AttemptLimits, running_attempt
from redis_message_queue.redis_py.redis_internals import uses_tls
from redis_message_queue.redis_py.simple_reply import NOT_SENT
from redis_message_queue.redis_py.tls_mismatch import mismatch_of
from redis_message_queue.values.errors import ConfigurationError, RedisMessageQueueError

T = TypeVar("T")

# What is left for each step of a cluster client that looks for a slot's new node, when the time of an attempt is over.
_NODES_SECONDS = 0.1
REPLY_TIMEOUT_SECONDS = 5.0  # how long we wait for one reply with a client that has no socket_timeout
_HANDSHAKE_SECONDS = 1.0  # with TLS, for the first attempt; the next ones have all the time that is left
_LOOK_SECONDS = 0.9  # for a look at what the port speaks: together less than 2 seconds
_TRUSTED_SECONDS = 30.0  # a host name may lead to another server later, and for one of two clients only


class _SameServer(NamedTuple):
    """When two clients were found to reach one server, and which primary each Sentinel named then."""

    primaries: tuple[Any, Any]
    at: float


def _pool(client: Any) -> Any:
    return getattr(client, "connection_pool", None)


class ClientPort:
    """Knows a client's settings and errors; the subclasses send commands."""

    now: Callable[[], float]
    # What the subclasses send; where the port blocks, nothing suspends.
    _execute: Callable[..., Coroutine[Any, Any, Any]]  # a command, through the client's own `execute_command`
    _exchange: Callable[..., Coroutine[Any, Any, Any]]  # a packed command, without redis-py's slow command layer
    _exchange_directly: Callable[..., Coroutine[Any, Any, list[Any]]]  # commands on an idle connection, or `NOT_SENT`
    _exchange_all: Callable[[Sequence[bytes]], Coroutine[Any, Any, list[Any]]]  # commands on one connection
    _wait_on_nodes: Callable[[tuple[str, ...], float, AttemptLimits], Coroutine[Any, Any, list[str]]]
    _close_after_failover: Callable[[], Coroutine[Any, Any, None]]  # idle connections: a new one leads to the primary
    _plain_client: ClassVar[type]
    _plain_pools: ClassVar[tuple[type, ...]]
    _plain_connections: ClassVar[tuple[type, ...]]

    def __init__(self, client: Any, *, pack_by_hand: bool = True, client_retries: bool = False) -> None:
        self._client = client
        # The clients that were found to reach our server; their settings alone do not show that.
        self._same_place: WeakKeyDictionary[Any, _SameServer] = WeakKeyDictionary()
        self.owner_pid = process()
        # A queue that is made after a snapshot was restored must share no ids with other copies of the process.
        restart_ids()
        plain = wire.is_plain(client, self._plain_client, self._plain_pools, self._plain_connections)
        self._packs_by_hand = plain and pack_by_hand
        timeout = wire.socket_timeout(client)
        self.socket_timeout = REPLY_TIMEOUT_SECONDS if timeout is None else timeout
        self.retry_window = wire.retry_window(client)
        self.decodes = wire.decodes(client)
        self.is_cluster = wire.is_cluster(client)
        self._client_retries = client_retries  # whether the client's own Retry applies to our calls
        self._read_seconds = REPLY_TIMEOUT_SECONDS if timeout is None else math.inf
        self._default_limits = AttemptLimits(client_retries, math.inf, self._read_seconds)
        self._was_refused = False  # whether a connection has failed, and the reason is not TLS
        attempt_limits.limit(client)

    @functools.cached_property
    def address(self) -> str:
        return wire.address(self._client)

    def _attempt(self) -> AttemptLimits:
        """Return a block in which the client keeps the limits of one attempt of ours."""
        until = attempt_ends_at()
        if until is None:
            if not self._default_limits.is_timed:
                return self._default_limits
            until = math.inf
        else:
            # Sockets have the real clock: tests move only that of the queues.
            until += time.monotonic() - self.now()
        if self.is_cluster:
            return AttemptLimits(self._client_retries, until, self._read_seconds, _NODES_SECONDS)
        return AttemptLimits(self._client_retries, until, self._read_seconds)

    def _connecting(self) -> AttemptLimits:
        """Return a block for an attempt to connect. The first handshake is short: the port may not speak TLS at all."""
        limits = self._attempt()
        if self._was_refused or not uses_tls(_pool(self._client)):
            return limits
        until = min(limits.until, time.monotonic() + _HANDSHAKE_SECONDS)
        return AttemptLimits(self._client_retries, until, self._read_seconds)

    def _explained(self, error: exceptions.RedisError) -> Exception:
        """Return the error to raise for a connection that failed; at the first one, look whether TLS is the reason."""
        if self._was_refused or isinstance(error, exceptions.AuthenticationError):
            return error
        self._was_refused = True
        said = mismatch_of(self._client, min(_LOOK_SECONDS, self._attempt().seconds_left()))
        return error if said is None else ConfigurationError(f"redis at {self.address}: {said}")

    def _longest_wait_for_pool(self) -> float:
        """Return how long this attempt may wait for a connection of a pool that is full, in seconds."""
        limits, longest = running_attempt(), self.socket_timeout or REPLY_TIMEOUT_SECONDS
        return longest if limits is None else min(longest, limits.seconds_left())

    @staticmethod
    def _has_answered(error: exceptions.RedisError) -> bool:
        """Return whether the server can be reached although we got no connection.

        Either all connections of the pool are in use, or the server replied that it is busy or loading.
        """
        if isinstance(error, exceptions.MaxConnectionsError) or "No connection available" in str(error):
            return True
        return isinstance(error, exceptions.ResponseError | exceptions.BusyLoadingError) and wire.is_transient(error)

    def reaches_the_same(self, other: Any) -> bool | None:
        mine, theirs = self._client, other._client
        if mine is theirs or _pool(mine) is _pool(theirs) is not None:
            return True
        if self.is_cluster != other.is_cluster:
            return False
        seen = self._same_place.get(theirs)
        if seen is None or seen.primaries != (wire.primary_of(mine), wire.primary_of(theirs)):
            return None
        return True if time.monotonic() - seen.at < _TRUSTED_SECONDS else None

    def note_the_same(self, other: Any) -> None:
        primaries = wire.primary_of(self._client), wire.primary_of(other._client)
        self._same_place[other._client] = _SameServer(primaries, time.monotonic())

    async def call(self, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        raise NotImplementedError

    async def _in_time(self, limits: AttemptLimits, work: Awaitable[T]) -> T:
        """Await the work until the time of this attempt is over, which the sockets of a blocking client know."""
        return await work

    async def _call_by_redis_py(
        self,
        command: Command,
        extra_keys: tuple[str, ...],
        arguments: tuple[Argument, ...],
        packed: bytes | None,
        reply: Any,
    ) -> Any:
        """Let redis-py send the command, if it was not sent; return its reply or raise its error."""
        try:
            try:
                if isinstance(reply, exceptions.ResponseError):
                    raise reply
                if reply is not NOT_SENT:
                    return reply
                if packed is not None:
                    return await self._exchange(packed)
                return await self._execute(*wire.command_args("EVALSHA", command, extra_keys, arguments))
            except exceptions.NoScriptError:
                # EVAL runs it and caches it on the node that has forgotten it.
                return await self._execute(*wire.command_args("EVAL", command, extra_keys, arguments))
        except exceptions.ResponseError as error:
            if wire.is_read_only(error):
                await self._close_after_failover()
            raise wire.translated(error, command.script.verb) from error

    async def call_both(self, first: Call, second: Call) -> tuple[Any, Any]:
        if not self._packs_by_hand:
            return await self._call_or_error(first), await self._call_or_error(second)
        with self._attempt() as limits:
            answers = await self._exchange_both(wire.pack(*first), wire.pack(*second), limits)
        return wire.answered(answers[0], first[0].script.verb), await self._second_result(answers[1], second)

    async def _exchange_both(self, first: bytes, second: bytes, limits: AttemptLimits) -> list[Any]:
        """Return the replies to two commands, or their errors."""
        answers = await self._exchange_directly(first + second, 2, limits)
        if answers[0] is NOT_SENT:
            return await self._in_time(limits, self._exchange_all((first, second)))
        if wire.any_is_read_only(answers):
            await self._close_after_failover()
        return answers

    async def wait(self, wakeup: str, seconds: float, *, punctual: bool = False) -> bool:
        nudge_at = time.monotonic() + wire.nudge_after(seconds) if punctual else None
        with self._attempt() as limits:
            try:
                return await self._wait((wakeup,), seconds, limits, nudge_at) is not None
            except exceptions.ResponseError as error:
                raise wire.translated(error, "claim") from error

    async def wait_any(self, wakeups: tuple[str, ...], seconds: float, *, punctual: bool = False) -> list[str]:
        nudge_at = time.monotonic() + wire.nudge_after(seconds) if punctual else None
        with self._attempt() as limits:
            try:
                if self.is_cluster:  # a cluster refuses one command for keys in different slots
                    return await self._wait_on_nodes(wakeups, seconds, limits)
                popped = await self._wait(wakeups, seconds, limits, nudge_at)
            except exceptions.ResponseError as error:
                raise wire.translated(error, "claim") from error
            return [] if popped is None else [popped[0].decode()]

    async def _wait(
        self, wakeups: tuple[str, ...], seconds: float, limits: AttemptLimits, nudge_at: float | None
    ) -> Any:
        command_args = wire.blpop(wakeups, seconds)
        if not self._packs_by_hand:
            return await self._in_time(limits, self._execute(*command_args))
        packed, nudge = wire.pack_command(command_args), partial(self._nudge, wakeups[0], limits)
        (reply,) = await self._exchange_directly(packed, 1, limits, nudge_at, nudge)
        if isinstance(reply, exceptions.ResponseError):
            raise reply
        return await self._in_time(limits, self._exchange(packed)) if reply is NOT_SENT else reply

    async def _nudge(self, wakeup: str, limits: AttemptLimits) -> None:
        """Make the server look at its timers, on another connection; without one its own timer must do."""
        with contextlib.suppress(exceptions.RedisError):
            packed = wire.nudge(wakeup)
            if (await self._exchange_directly(packed, 1, limits))[0] is NOT_SENT:
                await self._exchange(packed, waits=False)  # its caller holds a connection

    async def _second_result(self, answer: Any, call: Call) -> Any:
        """The result of a script that was sent behind another one. One that the server has forgotten is run again.

        The first is not run again: it would be executed behind the second.
        """
        if isinstance(answer, exceptions.NoScriptError):
            return await self._call_or_error(call)
        return wire.answered(answer, call[0].script.verb)

    async def _call_or_error(self, call: Call) -> Any:
        try:
            return await self.call(*call)
        except (exceptions.RedisError, RedisMessageQueueError) as error:
            return error

    def is_transient(self, error: BaseException) -> bool:
        return wire.is_transient(error)
