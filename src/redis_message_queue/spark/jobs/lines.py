"""Reads lines of JSON or text as messages: the payload of a line is the line itself, byte by byte."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from redis_message_queue.values.errors import PayloadValueError

_BAD_LINE = re.compile(r"row (\d+) of the split at (\d+) of (.+?): (.+)", re.S)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@dataclass
class LineReader:
    """Reads the rows of a task: lines, with the file and the split of each. The columns of JSON are its fields."""

    is_json: bool
    columns: tuple[tuple[str, str], ...] = ()  # `tenant` or `key`, and the field that it is read from

    def __post_init__(self) -> None:
        self._split: tuple[str, int] = ("", 0)
        self._row = 0

    def read(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Return the rows of a batch. A blank line has no payload.

        Raises:
            PayloadValueError: A line is not JSON. It says which one, for `find_line`.
        """
        for row in batch.to_pylist():
            split = (row["file"], row["start"])
            self._row = self._row + 1 if split == self._split else 1
            self._split = split
            line: bytes = row["payload"]
            if not line.strip():
                row["payload"] = None
            elif self.is_json:
                self._add_columns(row, line)
            yield row

    def _add_columns(self, row: dict[str, Any], line: bytes) -> None:
        try:
            # A float as it is written: a key must not change its text.
            found = json.loads(line, parse_float=str, parse_constant=_no_constant)
            if self.columns and not isinstance(found, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            file, start = self._split
            raise PayloadValueError(f"row {self._row} of the split at {start} of {file}: {error}") from None
        for column, name in self.columns:
            value = found.get(name)
            row[column] = value if value is None or isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class BadLine:
    """Where a line is that could not be read."""

    row: int  # within its split
    start: int
    file: str
    why: str

    @classmethod
    def of(cls, error: PayloadValueError) -> "BadLine | None":
        """Return the line that an error of `LineReader` is about."""
        found = _BAD_LINE.fullmatch(str(error))
        return None if found is None else cls(int(found[1]), int(found[2]), found[3], found[4])
