"""Where messages to publish come from: arguments, lines or JSON, in batches that a publish can take."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from redis_message_queue.cli.output import say
from redis_message_queue.errors import ConfigurationError

Message = str | dict[str, Any]
# As much as one read of a pipe gives at most; what has come by then is sent, and nothing waits for a full batch.
_READ_BYTES = 1 << 16


@dataclass(slots=True)
class Source:
    """Batches of messages, and what is known of how many there will be."""

    name: str
    batches: Iterator[list[Message]]
    total_bytes: int | None = None  # None for a pipe
    read_bytes: int = 0
    exhausted: bool = False

    def __iter__(self) -> Iterator[list[Message]]:
        yield from self.batches
        self.exhausted = True


@contextlib.contextmanager
def open_source(messages: list[str], path: str | None, most: int) -> Iterator[Source]:
    """What the arguments of a publish ask for; without any, stdin."""
    if messages:
        yield Source("the arguments", iter(_pieces(list[Message](messages), most)))
    elif path is None or path == "-":
        if sys.stdin.isatty():
            say("one message a line; Ctrl-D ends")
        yield _of_lines(Source("stdin", iter(())), sys.stdin.buffer, most)
    elif Path(path).suffix.lower() == ".json":
        yield Source(path, iter(_pieces(_of_json(path), most)))
    else:
        with open(path, "rb") as file:
            yield _of_lines(Source(path, iter(()), total_bytes=Path(path).stat().st_size), file, most)


def _pieces(messages: list[Message], most: int) -> Iterator[list[Message]]:
    for start in range(0, len(messages), most):
        yield messages[start : start + most]


def _of_lines(source: Source, stream: IO[bytes], most: int) -> Source:
    source.batches = _batches_of_lines(source, stream, most)
    return source


def _batches_of_lines(source: Source, stream: IO[bytes], most: int) -> Iterator[list[Message]]:
    read = cast(Any, stream).read1  # at most one read of the system: what a pipe has, not what it will have
    number, parts = 0, [b""]
    while chunk := read(_READ_BYTES):
        source.read_bytes += len(chunk)
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            parts.append(chunk)
            continue
        lines = b"".join([*parts, head]).split(b"\n")
        parts = [tail]
        yield from _pieces(list(_texts(source.name, lines, number)), most)
        number += len(lines)
    if last := b"".join(parts):
        yield from _pieces(list(_texts(source.name, [last], number)), most)


def _texts(name: str, lines: list[bytes], before: int) -> Iterator[str]:
    for number, line in enumerate(lines, before + 1):
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise ConfigurationError(f"line {number} of {name} is no UTF-8 text; nothing of it was published") from None
        if text:
            yield text


def _of_json(path: str) -> list[Message]:
    try:
        parsed = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigurationError(
            f"{path} is no JSON{where}; for one message a line give the file another ending, such as .jsonl"
        ) from None
    return [_as_message(one) for one in (parsed if isinstance(parsed, list) else [parsed])]


def _as_message(value: Any) -> Message:
    """Objects and texts travel as they are, all else as its JSON."""
    return value if isinstance(value, str | dict) else json.dumps(value, ensure_ascii=False)


def key_from_field(path: str) -> Callable[[Message], str]:
    """A function that finds the deduplication key of a message in one of its fields."""

    def key(message: Message) -> str:
        value: Any = message
        if isinstance(message, str):
            try:
                value = json.loads(message)
            except ValueError:
                raise ConfigurationError(f"--dedup-key-field {path}: a message is no JSON object") from None
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ConfigurationError(f"--dedup-key-field {path}: a message has no text or number there")
        return str(value)

    return key
