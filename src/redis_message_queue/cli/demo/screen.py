"""How the story looks: with a progress bar in a terminal, line by line elsewhere, not at all for a script."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

Mood = Literal["plain", "good", "bad"]
Row = tuple[str, int, str]

_HEADINGS = ("what", "orders", "who says so")
_HOLDS = "The balance holds: nothing was lost and nothing was done twice."
_BROKEN = "The balance does not hold: "
_AGREES = "The journal agrees: every message is accounted for."
_PAGE = "Open the report: "


class Screen:
    """Shows nothing."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str, *, mood: Mood = "plain") -> None:
        """One line about what just happened."""

    def progress(self, settled: int) -> None:
        """How many orders are completed or dead letters."""

    def show(self, rows: list[Row], complaints: list[str]) -> None:
        """The balance, when everything is settled."""

    def conclude(self, page: str, complaints: list[str]) -> None:
        """Where the report is."""

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started:4.1f} s"


class PlainScreen(Screen):
    """One line after the other, for logs and pipes."""

    def say(self, text: str, *, mood: Mood = "plain") -> None:
        print(f"{self._clock()}  {text}", flush=True)

    def show(self, rows: list[Row], complaints: list[str]) -> None:
        table = [_HEADINGS, *((what, str(count), source) for what, count, source in rows)]
        first, second = (max(len(row[column]) for row in table) for column in (0, 1))
        print()
        for what, count, source in table:
            print(f"{what:<{first}}  {count:>{second}}  {source}")
        print()
        print(_BROKEN + "; ".join(complaints) if complaints else _HOLDS, end="\n\n", flush=True)

    def conclude(self, page: str, complaints: list[str]) -> None:
        print("; ".join(complaints) if complaints else _AGREES)
        print(_PAGE + page, flush=True)


class RichScreen(Screen):
    """The same lines in colour, above a bar that moves."""

    _STYLES = {"plain": "", "good": "green", "bad": "red"}  # noqa: RUF012  never written to

    def __init__(self, bar: Any, orders: int) -> None:
        super().__init__()
        self._bar = bar
        self._task = bar.add_task("orders settled", total=orders)

    def say(self, text: str, *, mood: Mood = "plain") -> None:
        from rich.text import Text

        self._bar.console.print(Text.assemble((self._clock(), "dim"), "  ", (text, self._STYLES[mood])))

    def progress(self, settled: int) -> None:
        self._bar.update(self._task, completed=settled)

    def show(self, rows: list[Row], complaints: list[str]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(title="The balance", title_justify="left")
        table.add_column(_HEADINGS[0])
        table.add_column(_HEADINGS[1], justify="right", style="bold")
        table.add_column(_HEADINGS[2], style="dim")
        for what, count, source in rows:
            table.add_row(what, str(count), source)
        verdict = _BROKEN + "; ".join(complaints) if complaints else _HOLDS
        self._bar.console.print("", table, Text(verdict, self._verdict(complaints)), "", sep="\n")
        self._bar.remove_task(self._task)

    def conclude(self, page: str, complaints: list[str]) -> None:
        from rich.text import Text

        text = Text("; ".join(complaints) if complaints else _AGREES, self._verdict(complaints))
        # No wrapping: a path that is broken in two cannot be opened by a click.
        self._bar.console.print(text, Text(_PAGE + page), sep="\n", soft_wrap=True)

    def _verdict(self, complaints: list[str]) -> str:
        return "bold red" if complaints else "bold green"


@contextlib.contextmanager
def open_screen(orders: int, *, silent: bool) -> Iterator[Screen]:
    """The screen that suits where the output goes."""
    if silent:
        yield Screen()
    elif not sys.stdout.isatty():
        yield PlainScreen()
    else:
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ModuleNotFoundError:
            print("For colour and a progress bar: pip install 'redis-message-queue[server,cli]'", file=sys.stderr)
            yield PlainScreen()
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, transient=True) as bar:
            yield RichScreen(bar, orders)
