"""What a command's exit status tells a script."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from redis.exceptions import RedisClusterException, RedisError

from redis_message_queue.errors import (
    ConfigurationError,
    EmbeddedServerError,
    GatewayContractError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    RedisMessageQueueError,
    SelectionError,
)


class ExitStatus(IntEnum):
    """Each with its meaning; the page of the reference is made from here."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        status = int.__new__(cls, value)
        status._value_ = value
        status.meaning = meaning
        return status

    OK = 0, "it did what was asked"
    NO = 1, "it ran, and the answer is no, or something of it failed; stderr says what"
    USAGE = 2, "wrong usage: an option, an argument, a file or a payload that cannot be what was meant"
    SERVER = 3, "the server cannot be reached, or refused to do it"
    INTERRUPTED = 130, "stopped by Ctrl-C before it was done"
    BROKEN_PIPE = 141, "whoever read its output has gone, as `| head` does"
    TERMINATED = 143, "stopped by SIGTERM before it was done"


class CommandFailedError(RedisMessageQueueError):
    """A command ran and could not do what it was asked for; the text says why."""


class ServerUnusableError(RedisMessageQueueError):
    """No server answers under the URL, or it does not let us in."""


_USAGE = (
    ConfigurationError,
    GatewayContractError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    SelectionError,
    OSError,  # a file that is not there
    UnicodeError,  # or is no text
)
_SERVER = (ServerUnusableError, EmbeddedServerError, RedisError, RedisClusterException)


def status_of(error: Exception) -> ExitStatus:
    """The status for an error that ended a command."""
    if isinstance(error, _SERVER):
        return ExitStatus.SERVER
    return ExitStatus.USAGE if isinstance(error, _USAGE) else ExitStatus.NO
