"""How far the run is, and who fell out of it on the way."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, TaskID

from bench.contender import ContenderFailed


class Course:
    """A contender that fails at something is left out of that, with a word; the others go on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self.left_out: dict[str, str] = {}

    def stage(self, title: str, steps: float) -> None:
        self.finish()
        self._task = self._progress.add_task(title, total=steps)

    def finish(self) -> None:
        """Stop the clock of the stage, also where its size was an estimate."""
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
