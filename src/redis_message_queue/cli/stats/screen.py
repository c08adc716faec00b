"""The live table of `rmq stats --watch`: a row for each place of a queue where there is something to see."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from redis_message_queue.cli.stats.look import Watch
from redis_message_queue.cli.table import cell, printable

_BARS = "▁▂▃▄▅▆▇█"
_ALWAYS = ("pending", "processing")  # the others when they have or had something


def show(watch: Watch) -> None:
    """Until the watch ends."""
    with Live(console=Console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        for _ in watch.go_on():
            live.update(drawn(watch), refresh=True)


def drawn(watch: Watch) -> Table:
    """The last look, how it came about, and where it is going."""
    look = watch.looks[-1]
    table = Table(caption=f"{look.at:%Y-%m-%d %H:%M:%S} UTC, Ctrl-C ends it", caption_justify="left")
    for head in ("queue", "messages", "count", "a second", "oldest", "course"):
        table.add_column(head, justify="right" if head in ("count", "a second", "oldest") else "left", no_wrap=True)
    for queue, counts in look.counts.items():
        changes = watch.changes(queue) or {}
        places = [name for name, count in counts.items() if isinstance(count, int)]
        shown = [name for name in places if name in _ALWAYS or any(watch.course(queue, name))]
        for name in shown:
            age = counts.get(f"oldest_{name}_seconds")
            table.add_row(
                Text(printable(queue) if name == shown[0] else ""),
                name.replace("_", " "),
                cell(counts[name]),
                f"{changes[name]:+,.1f}" if name in changes else "",
                "" if age is None else short_age(age),
                sparkline(watch.course(queue, name)),
                end_section=name == shown[-1],
            )
    return table


def sparkline(values: Sequence[int]) -> str:
    """A bar for each value, the highest for the greatest; the lowest is for nothing at all."""
    greatest = max(values, default=0) or 1
    return "".join(_BARS[-(-max(0, value) * (len(_BARS) - 1) // greatest)] for value in values)


def short_age(seconds: float) -> str:
    """To the second, however long."""
    return str(timedelta(seconds=int(seconds)))
