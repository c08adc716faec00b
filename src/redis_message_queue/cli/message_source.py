"""Reads the messages to publish from arguments, lines or JSON, in batches."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from redis_message_queue.cli.output import say
from redis_message_queue.values.errors import ConfigurationError

Message = str | dict[str, Any]
# What one read of a pipe returns at most. It is published at once: no message waits for a full batch.
_READ_BYTES = 1 << 16


@dataclass(slots=True)
class Source:
    """Batches of messages, and how far they have been read."""

    name: str
    batches: Iterator[list[Message]]
    total_bytes: int | None = None  # None for a pipe
    read_bytes: int = 0
    exhausted: bool = False

    def __iter__(self) -> Iterator[list[Message]]:
        yield from self.batches
        self.exhausted = True


@contextlib.contextmanager
def open_source(messages: list[str], path: str | None, batch_size: int) -> Iterator[Source]:
    """Open what the arguments of `rmq publish` name; stdin if they name nothing."""
    if messages:
        yield Source("the arguments", _batches(list[Message](messages), batch_size))
    elif path is None or path == "-":
        if sys.stdin.isatty():
            say("one message per line; Ctrl-D ends the input")
        yield _lines_of(Source("stdin", iter(())), sys.stdin.buffer, batch_size)
    elif Path(path).suffix.lower() == ".json":
        yield Source(path, _batches(_json_messages(path), batch_size))
    else:
        with open(path, "rb") as file:
            yield _lines_of(Source(path, iter(()), total_bytes=Path(path).stat().st_size), file, batch_size)


def _batches(messages: list[Message], batch_size: int) -> Iterator[list[Message]]:
    for start in range(0, len(messages), batch_size):
        yield messages[start : start + batch_size]


def _lines_of(source: Source, stream: IO[bytes], batch_size: int) -> Source:
    source.batches = _line_batches(source, stream, batch_size)
    return source


def _line_batches(source: Source, stream: IO[bytes], batch_size: int) -> Iterator[list[Message]]:
    reader: Any = stream
    read = reader.read1  # one read of the system: what a pipe has now, not what it will have
    number, parts = 0, [b""]
    while chunk := read(_READ_BYTES):
        source.read_bytes += len(chunk)
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            parts.append(chunk)
            continue
        lines = b"".join([*parts, head]).split(b"\n")
        parts = [tail]
        yield from _batches(list(_texts(source.name, lines, number)), batch_size)
        number += len(lines)
    if last := b"".join(parts):
        yield from _batches(list(_texts(source.name, [last], number)), batch_size)


def _texts(name: str, lines: list[bytes], before: int) -> Iterator[str]:
    for number, line in enumerate(lines, before + 1):
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise ConfigurationError(f"line {number} of {name} is not UTF-8 text; it was not published") from None
        if text:
            yield text


def _json_messages(path: str) -> list[Message]:
    """Objects and texts as they are, other values as their JSON."""
    try:
        parsed = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigurationError(
            f"{path} is not JSON{where}; to publish each line, give the file another ending, such as .jsonl"
        ) from None
    values = parsed if isinstance(parsed, list) else [parsed]
    return [one if isinstance(one, str | dict) else json.dumps(one, ensure_ascii=False) for one in values]


def key_from_field(path: str) -> Callable[[Message], str]:
    """Return a function that reads the deduplication key of a message from one of its fields."""

    def key(message: Message) -> str:
        value: Any = message
        if isinstance(message, str):
            try:
                value = json.loads(message)
            except ValueError:
                raise ConfigurationError(f"--dedup-key-field {path}: a message is not a JSON object") from None
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ConfigurationError(f"--dedup-key-field {path}: a message has no text or number in this field")
        return str(value)

    return key
