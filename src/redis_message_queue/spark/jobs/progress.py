"""How a job tells how far it is, and how its result becomes JSON."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """One step that is done: which, and how much of how much, where that is known."""

    step: str
    done: int = 0
    total: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        amount = "" if not self.done and self.total is None else f" {self.done:,}"
        amount += f" of {self.total:,}" if self.total is not None else ""
        return f"{self.step}{amount}{': ' + self.detail if self.detail else ''}"


OnProgress = Callable[[Progress], Any]


def unheard(progress: Progress) -> None:
    """For those who did not ask."""


class JsonResult:
    """A result that a command line can print: what `as_dict` gives can be JSON."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass
