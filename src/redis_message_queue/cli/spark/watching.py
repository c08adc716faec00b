"""Shows how far a job is: a bar on stderr where somebody looks, a line a step elsewhere, nothing for a script."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from redis_message_queue.cli.frame import Output

if TYPE_CHECKING:
    from redis_message_queue.spark.jobs.progress import OnProgress, Progress


@contextlib.contextmanager
def watched(output: Output, first: str) -> Iterator[OnProgress]:
    """What a job tells its progress to; ``first`` is said before anything has happened, since Spark takes its time."""
    if output.json or not sys.stderr.isatty():
        output.say(f"{first} ...")
        yield lambda progress: output.say(f"  {progress}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)
        yield lambda progress: _move(bar, task, progress)


def _move(bar: object, task: object, progress: Progress) -> None:
    update = bar.update  # type: ignore[attr-defined]  # rich is imported where somebody looks
    update(task, description=str(progress), total=progress.total, completed=progress.done)
