"""The progress bar of a run, and the contenders that failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, TaskID

from bench.contender import ContenderFailed


class RunProgress:
    """Leaves a failing contender out of that measurement and keeps the reason; the others continue."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self.left_out: dict[str, str] = {}

    def stage(self, title: str, steps: float) -> None:
        self.finish()
        self._task = self._progress.add_task(title, total=steps)

    def finish(self) -> None:
        """Complete the bar of the current stage, even if its size was an estimate."""
        if self._task is not None:
            self._progress.update(self._task, total=1, completed=1)

    def step(self, size: float = 1) -> None:
        assert self._task is not None
        self._progress.advance(self._task, size)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        try:
            yield
        except ContenderFailed as failure:
            self.left_out[what] = str(failure)
