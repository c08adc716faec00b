"""What becomes of a message whose handler raised: another attempt, later and later, or the end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from redis_message_queue.checks import number, whole_number
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """An ordinary exception sends the message back, with a growing pause, until its attempts are used up.

    The pause after the first failure is ``initial_delay_seconds``, after each further one ``multiplier`` times as
    long, at most ``max_delay_seconds``; up to ``jitter`` of it, a fraction, is left to chance. Only exceptions of
    ``retry_on`` are tried again, and never those of ``give_up_on``.
    """

    max_attempts: int = 5
    initial_delay_seconds: float = 1.0
    multiplier: float = 2.0
    max_delay_seconds: float = 3600.0
    jitter: float = 0.5
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        whole_number("max_attempts", self.max_attempts)
        number("initial_delay_seconds", self.initial_delay_seconds, least=0)
        number("multiplier", self.multiplier, least=1)
        number("max_delay_seconds", self.max_delay_seconds, least=0)
        number("jitter", self.jitter, least=0)
        if self.jitter > 1:
            raise ConfigurationError(f"jitter is the part of a pause that is left to chance, 0 to 1, not {self.jitter}")
        if self.initial_delay_seconds > self.max_delay_seconds:
            raise ConfigurationError(
                f"initial_delay_seconds ({self.initial_delay_seconds}) is longer than max_delay_seconds "
                f"({self.max_delay_seconds}); the first pause must be the shortest"
            )
        for name in ("retry_on", "give_up_on"):
            object.__setattr__(self, name, _exceptions(name, getattr(self, name)))

    def tries_again(self, error: Exception, failures: int) -> bool:
        """Whether there is another attempt after this one, which is failure number ``failures``."""
        return failures < self.max_attempts and not self.gives_up(error)

    def gives_up(self, error: Exception) -> bool:
        """Whether no attempt follows on this, however many are left."""
        return isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on)

    def pause(self, failures: int, chance: float) -> float:
        """How long to wait after failure number ``failures`` (1, 2, ...); ``chance`` is a number from 0 up to 1."""
        try:
            growth = float(self.multiplier) ** (failures - 1)
        except OverflowError:
            growth = sys.float_info.max
        return min(self.max_delay_seconds, self.initial_delay_seconds * growth) * (1 - self.jitter * chance)


def _exceptions(name: str, given: Any) -> tuple[type[Exception], ...]:
    kinds = given if isinstance(given, tuple | list | set | frozenset) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigurationTypeError(f"{name} must be exception classes, not {kind!r}")
    return tuple(kinds)
