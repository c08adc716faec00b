"""The exit statuses of `rmq`, and the errors that lead to them."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from redis.exceptions import RedisClusterException, RedisError

from redis_message_queue.values.errors import (
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
    """Each status with its meaning; the reference page is generated from here."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        status = int.__new__(cls, value)
        status._value_ = value
        status.meaning = meaning
        return status

    OK = 0, "the command did what you asked"
    FAILED = 1, "the check failed, or part of the work failed; stderr says what"
    USAGE = 2, "an option, an argument, a file or a payload is wrong"
    SERVER = 3, "the Redis server could not be reached, or refused the request"
    OUTPUT = 74, "stdout could not be written: it is closed, or the disk is full"
    INTERRUPTED = 130, "Ctrl-C stopped the command before it was done"
    BROKEN_PIPE = 141, "the program that read the output has ended, as `| head` does"
    TERMINATED = 143, "SIGTERM stopped the command before it was done"


class CommandFailedError(RedisMessageQueueError):
    """The command ran and could not do what was asked; the text says why."""


class ServerUnusableError(RedisMessageQueueError):
    """No server answers at the URL, or it refuses the connection; if that is final, no further attempt can succeed."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


_USAGE = (
    ConfigurationError,
    GatewayContractError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PayloadTypeError,
    PayloadValueError,
    SelectionError,
    OSError,  # a file that does not exist
    UnicodeError,  # or is not text
)
_SERVER = (ServerUnusableError, EmbeddedServerError, RedisError, RedisClusterException)


def status_of(error: Exception) -> ExitStatus:
    """Return the status for an error that ended a command."""
    if isinstance(error, _SERVER):
        return ExitStatus.SERVER
    return ExitStatus.USAGE if isinstance(error, _USAGE) else ExitStatus.FAILED
