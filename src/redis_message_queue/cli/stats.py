"""rmq stats: how many messages a queue has in each place, once or repeatedly."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output, cell, say, to_dict
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.protocol.port import finish
from redis_message_queue.values.plain_values import printable

if TYPE_CHECKING:
    from rich.table import Table

    from redis_message_queue import RedisMessageQueue

Counts = dict[str, dict[str, Any]]

_INTERVAL_SECONDS = 2.0
_KEPT_SAMPLES = 40  # one for each column of the sparkline
_SIGNAL_CHECK_SECONDS = 0.1
_BARS = "▁▂▃▄▅▆▇█"
_ALWAYS_SHOWN = ("pending", "processing")  # the other places only if they have or had messages


def stats(
    queue: QueueChoice,
    output: Output,
    more: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="Further queues.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=86_400,
            help="How long to wait before the next sample. Implies --watch.",
            show_default=f"{_INTERVAL_SECONDS:g}",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", metavar="N", min=1, help="Stop after this many samples. Implies --watch."),
    ] = None,
    oldest: Annotated[
        bool,
        typer.Option(
            "--oldest/--no-oldest",
            help="Find the oldest pending message. This reads from each tenant: turn it off if there are very many.",
        ),
    ] = True,
) -> ExitStatus | None:
    """Show how many messages are where, how long the oldest has waited, what is paused, and who works on the queue.

    With --watch the table is updated in place: counts, their change per second, the age of the oldest pending message,
    and a sparkline of the last samples. Without a terminal, or with --json, each sample is one line of JSON for each
    queue, with the changes since the last sample in `per_second`. Ctrl-C stops it.

    The exit status is 1 if there is no queue of this name. --watch waits for it.
    """
    names = list(dict.fromkeys([queue.name, *(more or [])]))
    if queue.dead_letter_queue is not None and len(names) > 1:
        raise typer.BadParameter("belongs to one queue; ask for that queue alone", param_hint="--dead-letter-queue")
    with contextlib.ExitStack() as stack:
        queues = {name: stack.enter_context(dataclasses.replace(queue, name=name).open()) for name in names}
        if not watch and every is None and count is None:
            found = {name: one for name, one in _counts(queues, oldest).items() if _is_known(queues[name], one)}
            if found:
                output.table([{"queue": name} | one for name, one in found.items()])
            for name in () if output.json else found:
                output.say(f"{printable(name)}: {finish(queues[name]._protocol.operator.about_workers())}")
            for name in (one for one in queues if one not in found):
                say(f"{printable(name)}: no queue of this name here ({queue.shown_url})")
            return None if len(found) == len(queues) else ExitStatus.FAILED
        stop = stack.enter_context(StopSignals())
        poller = StatsWatch(queues, every or _INTERVAL_SECONDS, count, stop, oldest=oldest)
        poller.wait_for_queues()
        if output.json or not sys.stdout.isatty():
            for row in poller.rows():
                output.line(row)
        else:
            _show(poller)
    # A watch without --count can only end by a signal, so that is success.
    return stop.status if count is not None and stop.is_interrupted() else None


def _counts(queues: Mapping[str, RedisMessageQueue], oldest: bool) -> Counts:
    return {
        name: to_dict(queue.stats(oldest=oldest)) | {"workers": len(queue.workers())} for name, queue in queues.items()
    }


def _is_known(queue: RedisMessageQueue, counts: Mapping[str, Any]) -> bool:
    """Return whether there is such a queue: it has messages or any key, such as its state or an entry of a worker."""
    if any(_is_count(one) and one for one in counts.values()):
        return True
    part = queue._protocol.store.parts[0]
    keys = dataclasses.asdict(part.keys)
    del keys["prefix"], keys["separator"]
    (found,) = finish(part.calls.port.pipeline(part.keys.meta, (("EXISTS", *keys.values()),)))
    return bool(found)  # also if this user may not ask


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """All queues at one time."""

    at: datetime
    clock: float
    counts: Counts


class StatsWatch:
    """Takes samples until it is stopped or has taken enough, and keeps the last ones."""

    def __init__(
        self,
        queues: Mapping[str, RedisMessageQueue],
        interval_seconds: float,
        count: int | None,
        stop: StopSignals,
        *,
        oldest: bool = True,
    ) -> None:
        self._queues, self._interval, self._count = queues, interval_seconds, count
        self._stop, self._oldest = stop, oldest
        self.samples: deque[QueueCounts] = deque(maxlen=_KEPT_SAMPLES)

    def wait_for_queues(self) -> None:
        """Say which queues there are not yet, and wait until there are all of them."""
        for name, queue in self._queues.items():
            said = False
            while not self._stop.is_interrupted() and not _is_known(queue, to_dict(queue.stats(oldest=False))):
                if not said:
                    say(f"{printable(name)}: no queue of this name here yet; waiting for it")
                said = True
                self._rest(time.monotonic() + self._interval)

    def _rest(self, due: float) -> None:
        while not self._stop.is_interrupted() and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, _SIGNAL_CHECK_SECONDS))

    def poll(self) -> Iterator[QueueCounts]:
        """Yield a sample at each interval; a slow server delays the next one."""
        done = 0
        while not self._stop.is_interrupted():
            begun = time.monotonic()
            self.samples.append(QueueCounts(datetime.now(UTC), begun, _counts(self._queues, self._oldest)))
            yield self.samples[-1]
            done += 1
            if done == self._count:
                return
            self._rest(begun + self._interval)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each queue and sample, for scripts."""
        for sample in self.poll():
            for name, counts in sample.counts.items():
                yield {"queue": name, "at": sample.at, **counts, "per_second": self.changes(name)}

    def changes(self, queue: str) -> dict[str, float] | None:
        """Return the change per second of each count between the last two samples; None before the second."""
        if len(self.samples) < 2:
            return None
        before, now = self.samples[-2], self.samples[-1]
        seconds = max(now.clock - before.clock, 1e-6)
        former = before.counts[queue]
        return {
            name: (count - former[name]) / seconds
            for name, count in now.counts[queue].items()
            if _is_count(count) and _is_count(former.get(name))
        }

    def history(self, queue: str, name: str) -> list[int]:
        """Return one count in all samples that are kept, the oldest first."""
        return [sample.counts[queue].get(name) or 0 for sample in self.samples]


def _show(poller: StatsWatch) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        for sample in poller.poll():
            live.update(_table(poller, sample), refresh=True)


def _table(poller: StatsWatch, sample: QueueCounts) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=f"{sample.at:%Y-%m-%d %H:%M:%S} UTC, Ctrl-C to stop", caption_justify="left")
    for head in ("queue", "messages", "count", "per second", "oldest", "history"):
        table.add_column(head, justify="right" if head in ("count", "per second", "oldest") else "left", no_wrap=True)
    for queue, counts in sample.counts.items():
        changes = poller.changes(queue) or {}
        places = [name for name, count in counts.items() if _is_count(count)]
        title = f"{printable(queue)} (paused)" if counts.get("paused") else printable(queue)
        shown = [name for name in places if name in _ALWAYS_SHOWN or any(poller.history(queue, name))]
        for name in shown:
            age = counts.get(f"oldest_{name}_seconds")
            table.add_row(
                Text(title if name == shown[0] else ""),
                name.replace("_", " "),
                cell(counts[name]),
                f"{changes[name]:+,.1f}" if name in changes else "",
                "" if age is None else str(timedelta(seconds=int(age))),
                sparkline(poller.history(queue, name)),
                end_section=name == shown[-1],
            )
    return table


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def sparkline(values: Sequence[int]) -> str:
    """Return a bar for each value, the highest for the greatest; only 0 has the lowest bar."""
    greatest = max(values, default=0) or 1
    return "".join(_BARS[-(-max(0, value) * (len(_BARS) - 1) // greatest)] for value in values)
