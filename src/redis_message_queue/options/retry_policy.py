"""Decides whether and when a message is retried after its handler raised."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from redis_message_queue.values.checks import number, suggests_options, whole_number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.values.plain_values import brief, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retries a message whose handler raised, with exponential backoff, until its attempts are used up.

    The first pause lasts ``initial_delay_seconds``. Each further pause is ``multiplier`` times as long, up to
    ``max_delay_seconds``. A random part of each pause, at most the fraction ``jitter``, is subtracted. Only the
    exceptions in ``retry_on`` are retried, and never those in ``give_up_on``.
    """

    max_attempts: int = 5
    initial_delay_seconds: float = 1.0
    multiplier: float = 2.0
    max_delay_seconds: float = 3600.0
    jitter: float = 0.5
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_attempts", "initial_delay_seconds", "multiplier", "max_delay_seconds", "jitter"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        whole_number("max_attempts", self.max_attempts)
        number("initial_delay_seconds", self.initial_delay_seconds, least=0)
        number("multiplier", self.multiplier, least=1)
        number("max_delay_seconds", self.max_delay_seconds, least=0)
        number("jitter", self.jitter, least=0)
        if self.jitter > 1:
            raise ConfigurationError(f"jitter must be a fraction of the pause, 0 to 1, not {self.jitter}")
        if self.initial_delay_seconds > self.max_delay_seconds:
            raise ConfigurationError(
                f"initial_delay_seconds ({self.initial_delay_seconds}) is longer than max_delay_seconds "
                f"({self.max_delay_seconds}); the first pause must be the shortest"
            )
        for name in ("retry_on", "give_up_on"):
            object.__setattr__(self, name, _exceptions(name, getattr(self, name)))

    def tries_again(self, error: Exception, failures: int) -> bool:
        """Whether to try again after failure number ``failures``."""
        return failures < self.max_attempts and not self.gives_up(error)

    def gives_up(self, error: Exception) -> bool:
        """Whether this exception ends the retries, however many attempts are left."""
        return isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on)

    def pause(self, failures: int, random: float) -> float:
        """Seconds to wait after failure number ``failures`` (1, 2, ...); ``random`` is at least 0 and below 1."""
        try:
            growth = float(self.multiplier) ** (failures - 1)
        except OverflowError:
            growth = sys.float_info.max
        return min(self.max_delay_seconds, self.initial_delay_seconds * growth) * (1 - self.jitter * random)


RetryPolicy.__init__ = suggests_options(RetryPolicy.__init__)  # type: ignore[method-assign]  # dataclass made it


def _exceptions(name: str, given: Any) -> tuple[type[Exception], ...]:
    kinds = given if isinstance(given, tuple | list | set | frozenset) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigurationTypeError(f"{name} must be exception classes, not {brief(kind)}")
    return tuple(kinds)
