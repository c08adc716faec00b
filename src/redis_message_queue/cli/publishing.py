"""Sends batches of messages, counting, with a bar in a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis_message_queue.cli.message_source import Source
from redis_message_queue.cli.output import Output

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue


@dataclass(slots=True)
class Counts:
    """What became of the messages so far."""

    published: int = 0
    suppressed: int = 0

    @property
    def total(self) -> int:
        return self.published + self.suppressed

    def add(self, accepted: list[bool]) -> None:
        self.published += sum(accepted)
        self.suppressed += len(accepted) - sum(accepted)

    def show(self, output: Output, queue: str) -> None:
        output.document({"queue": queue, "published": self.published, "suppressed": self.suppressed})


@dataclass(slots=True)
class Publishing:
    """One run of `rmq publish`."""

    queue: RedisMessageQueue
    details: dict[str, Any]
    counts: Counts = field(default_factory=Counts)

    def send(self, source: Source) -> None:
        """Everything that the source has; what was sent before an error is counted."""
        with _bar(source) as moved:
            for batch in source:
                try:
                    self.counts.add(self.queue.publish_many(batch, **self.details))
                except Exception as error:
                    self.counts.add(getattr(error, "results", []))
                    raise
                moved(self.counts.total)


@contextlib.contextmanager
def _bar(source: Source) -> Iterator[Callable[[int], None]]:
    """Shown on stderr where somebody looks, and only if nobody types."""
    if not sys.stderr.isatty() or source.name == "the arguments" or (source.total_bytes is None and sys.stdin.isatty()):
        yield lambda total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.fields[sent]:,} sent"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=source.total_bytes, sent=0)
        yield lambda total: bar.update(task, completed=source.read_bytes, sent=total)
