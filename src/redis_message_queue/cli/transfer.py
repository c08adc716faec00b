"""rmq export and rmq import: all messages of a queue as JSON Lines, and back into a queue, each once."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args
from uuid import uuid4

import typer

from redis_message_queue.cli.common_options import QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output, say
from redis_message_queue.protocol.operate.transfer import WAITING, TransferredMessage, TransferSource
from redis_message_queue.values.errors import ConfigurationError

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue

_FORMAT = 1
_DAY_SECONDS = 86_400.0
_BATCH_MESSAGES, _BATCH_BYTES = 500, 2_000_000  # that one request stores
_BYTES = ("payload", "tenant", "extras", "record")
_NUMBERS = ("published_us", "ttl_us", "due_us")
_SOURCES = get_args(TransferSource)


def export(
    queue: QueueChoice,
    file: Annotated[str, typer.Option("--file", "-f", metavar="PATH", help="The file to write; - is stdout.")] = "-",
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help=f"Only this: {', '.join(_SOURCES)}. Several times for several of them.",
            show_default="all of them",
        ),
    ] = None,
) -> None:
    """Write all messages of a queue as JSON Lines, without changing the queue.

    Each line has the payload, the id, the tenant, the headers, the times, the delay and the attempts of a message and
    whether it is cancelled, or the record of a message that has failed, is dead or was completed. Bytes that are not
    UTF-8 are written as base64. `rmq import` makes the same messages of it, in this queue or in another one.

    Pause the queue first (`rmq pause`) and stop its producers: an export takes several requests, and what moves
    meanwhile may be missing or come twice. A message that is being handled is exported as it is, and after an import it
    waits again, before those that were behind it. A file appears under its name when it is complete.
    """
    from redis_message_queue.protocol.operate.transfer import Exporter
    from redis_message_queue.protocol.port import finish

    chosen = [one for one in _SOURCES if source is None or one in source]
    for one in source or ():
        if one not in _SOURCES:
            raise typer.BadParameter(f"{one!r} is not one of {', '.join(_SOURCES)}", param_hint="--source")
    counts, foreign = Counter[str](), 0
    with queue.open() as opened, _writing(file) as write, _progress(file != "-") as show:
        parts, number = opened._protocol.parts, 0
        head = {"rmq_export": _FORMAT, "export_id": uuid4().hex, "queue": queue.name, "exported_at": _now()}
        write(json.dumps(head | {"partitions": len(parts)}))
        for one, (place, part) in itertools.product(chosen, enumerate(parts)):
            exporter = Exporter(part.store.calls, one)
            while not exporter.is_over:
                page = finish(exporter.next_page())
                for message in page:
                    number += 1
                    write(to_line(message, number, place))
                counts[one] += len(page)
                show(number)
            foreign += exporter.foreign
        write(json.dumps({"rmq_export_end": True, "messages": number}))
    say(f"exported {number:,} message{'s' if number != 1 else ''}: {_listed(counts)}")
    if foreign:
        say(f"{foreign:,} values in the queue are not messages of ours and were left out")


def import_(
    queue: QueueChoice,
    output: Output,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `rmq export` has written; - is stdin.")] = "-",
    window_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="How long an import remembers its messages, to import none of them twice."
        ),
    ] = _DAY_SECONDS,
) -> ExitStatus | None:
    """Store the messages of an export in a queue: with their ids, tenants, headers, times, delays and attempts.

    A message is stored once, however often you run this within --window-seconds, also if a run was interrupted: simply
    run it again. Messages that were in flight wait again, and count the delivery that was under way. With
    `ordered_tenants`, a message that waits for its next attempt keeps its place. A cancelled message is dropped by the
    claim that meets it. Failed, dead and completed messages go behind what is in their lists, with their records.

    The exit status is 1 if the export is incomplete, as after a full disk. What it has is imported then.
    """
    with (
        _reading(file) as lines,
        queue.open(message_deduplication_log_ttl_seconds=window_seconds, max_delivery_count=None) as opened,
        _progress(sys.stderr.isatty()) as show,
    ):
        importing = _Import(opened)
        importing.run(file, lines, show)
    output.document({"queue": queue.name, **importing.counts})
    if not importing.is_complete:
        say(f"rmq import: {'stdin' if file == '-' else file} ends before its export was complete")
        return ExitStatus.FAILED
    return None


class _Import:
    """Reads lines, and stores what they say in batches."""

    def __init__(self, queue: RedisMessageQueue) -> None:
        from redis_message_queue.protocol.operate.transfer import Importer

        self._importers = [Importer(part.store.calls) for part in queue._protocol.parts]
        self._batch: list[tuple[TransferredMessage, str]] = []
        self._partition = 0  # of the batch
        self._bytes = 0
        self._export_id = ""
        self.is_complete = False
        self.counts: Counter[str] = Counter({"imported": 0, "already_there": 0})

    def run(self, name: str, lines: Iterator[bytes], show: Callable[[int], None]) -> None:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                self._read(line)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                self._flush()
                raise ConfigurationError(
                    f"line {number} of {'stdin' if name == '-' else name} is not of an export: {error}; the lines "
                    "before it are imported"
                ) from None
            show(self.counts.total())
        self._flush()

    def _read(self, line: bytes) -> None:
        facts = json.loads(line)
        if not isinstance(facts, dict):
            raise ValueError("it is not a JSON object")
        if "rmq_export" in facts:
            if facts["rmq_export"] != _FORMAT:
                raise ValueError(f"its format is {facts['rmq_export']!r}, and this release knows {_FORMAT}")
            self._export_id, self.is_complete = str(facts["export_id"]), False
            partitions = facts.get("partitions", 1)
            if partitions != len(self._importers):
                raise ValueError(
                    f"it has {partitions} partitions, and the queue has {len(self._importers)}; for a new queue, pass "
                    f"--partitions {partitions}"
                )
        elif "rmq_export_end" in facts:
            self.is_complete = True
        elif not self._export_id:
            raise ValueError("an export begins with a line that has rmq_export")
        else:
            partition = facts.get("partition", 0)
            if not isinstance(partition, int) or partition not in range(len(self._importers)):
                raise ValueError(f"there is no partition {partition!r}")
            self._add(from_facts(facts), f"{self._export_id}:{int(facts['number'])}", partition)

    def _add(self, message: TransferredMessage, key: str, partition: int) -> None:
        if self._batch and (self._batch[0][0].state, self._partition) != (message.state, partition):
            self._flush()
        self._partition = partition
        self._batch.append((message, key))
        self._bytes += sum(len(getattr(message, name) or b"") for name in (*_BYTES, "deliveries"))
        if len(self._batch) >= _BATCH_MESSAGES or self._bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        from redis_message_queue.protocol.port import finish

        if not self._batch:
            return
        importer = self._importers[self._partition]
        if self._batch[0][0].state in WAITING:
            new = finish(importer.store([message for message, _ in self._batch]))
        else:
            new = finish(importer.store_in_list(self._batch[0][0].state, self._batch))
        self.counts["imported"] += sum(new)
        self.counts["already_there"] += len(new) - sum(new)
        self._batch, self._bytes = [], 0


# A message as a line


def to_line(message: TransferredMessage, number: int, partition: int = 0) -> str:
    """Return a message as one line of JSON; its number makes it unique in its export."""
    facts: dict[str, Any] = {"state": message.state, "number": number}
    if partition:
        facts["partition"] = partition
    if message.id:
        facts["id"] = message.id.hex()
    for name in _NUMBERS:
        if value := getattr(message, name):
            facts[name] = value
    if message.cancelled:
        facts["cancelled"] = True
    if message.deliveries:
        facts["deliveries"] = message.deliveries.decode("ascii", "replace")
    for name in _BYTES:
        value = getattr(message, name)
        if value or (name == "payload" and value is not None):
            key, text = _as_text(name, value)
            facts[key] = text
    return json.dumps(facts)


def _as_text(name: str, value: bytes) -> tuple[str, str]:
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()


def from_facts(facts: dict[str, Any]) -> TransferredMessage:
    """Return the message that a line describes. Raises ValueError, TypeError or KeyError for anything else."""
    state = facts["state"]
    if state not in _SOURCES:
        raise ValueError(f"the state {state!r} is not one of {', '.join(_SOURCES)}")
    found: dict[str, Any] = {"state": state, "payload": b""}
    for name in _BYTES:
        if f"{name}_base64" in facts:
            found[name] = base64.b64decode(facts[f"{name}_base64"], validate=True)
        elif name in facts:
            if not isinstance(facts[name], str):
                raise ValueError(f"its {name} is not a text")
            found[name] = facts[name].encode()
    for name in _NUMBERS:
        value = facts.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
            raise ValueError(f"{name} is {value!r}, and must be a whole number")
        found[name] = value
    if state in WAITING:
        found["id"] = bytes.fromhex(facts["id"])
        if len(found["id"]) != 16:
            raise ValueError("an id has 32 hexadecimal digits")
        if not isinstance(deliveries := facts.get("deliveries", ""), str):
            raise ValueError("its deliveries are not a text")
        found["deliveries"] = deliveries.encode("ascii")
        if not isinstance(cancelled := facts.get("cancelled", False), bool):
            raise ValueError(f"cancelled is {cancelled!r}, and must be true or false")
        found["cancelled"] = cancelled
        if len(found.get("tenant", b"")) > 255 or len(found.get("extras", b"")) > 65_535:
            raise ValueError("its tenant or its extras are too long")
    return TransferredMessage(**found)


# Files


@contextlib.contextmanager
def _writing(path: str) -> Iterator[Callable[[str], Any]]:
    """A function that writes a line. A file has its name when it is complete."""
    if path == "-":
        yield lambda line: print(line)
        sys.stdout.flush()
        return
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield lambda line: print(line, file=file)
        part.replace(target)
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[Iterator[bytes]]:
    if path == "-":
        yield iter(sys.stdin.buffer)
        return
    with open(path, "rb") as file:
        yield iter(file)


@contextlib.contextmanager
def _progress(wanted: bool) -> Iterator[Callable[[int], None]]:
    """A line on stderr that counts, if that is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} messages"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, completed=count)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing"
