"""How log lines look: text for people, or one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal

from redis_message_queue.cli.output import PrintableFormatter, say, to_json
from redis_message_queue.values.plain_values import LOGGED_TRACEBACK_BYTES, class_name, traceback_text

LogFormat = Literal["text", "json"]


class TextFormatter(PrintableFormatter):
    """A line of text; with ``tracebacks``, also where a handler raised for the last time."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(process)d %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        shown = record.exc_info, record.exc_text
        if not self._tracebacks and hasattr(record, "handler_error"):
            record.exc_info = record.exc_text = None
        try:
            return super().format(record)
        finally:
            record.exc_info, record.exc_text = shown


class JsonFormatter(logging.Formatter):
    """One JSON object a line. It names the queue, the message and the address, each null if there is none."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        error = _error_of(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "queue": getattr(record, "queue", None),
            "message_id": getattr(record, "message_id", None),
            "address": getattr(record, "address", None),
            "text": record.getMessage(),
        }
        if error is not None:
            line["exception_type"] = class_name(error)
        if record.exc_info and error is not None and (self._tracebacks or not hasattr(record, "handler_error")):
            line["traceback"] = record.exc_text or traceback_text(error, LOGGED_TRACEBACK_BYTES)
        return to_json(line)


class _Context(logging.Filter):
    """Adds to each line what is the same for the whole process."""

    def __init__(self, address: str, queue: str | None) -> None:
        super().__init__()
        self._known = {"address": address, "queue": queue}

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in self._known.items():
            if getattr(record, name, None) is None:
                setattr(record, name, value)
        return True


def set_up_logging(log_format: LogFormat, level: str, *, tracebacks: bool, address: str, queue: str | None) -> None:
    """Log to stderr. Handlers that the user's module installs later are added to ours."""
    handler = logging.StreamHandler(sys.stderr)
    chosen = JsonFormatter if log_format == "json" else TextFormatter
    handler.setFormatter(chosen(tracebacks=tracebacks))
    handler.addFilter(_Context(address, queue))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())


def _error_of(record: logging.LogRecord) -> BaseException | None:
    error: BaseException | None = getattr(record, "handler_error", None)
    if error is None and record.exc_info:  # an exception may be false, or not say whether it is
        error = record.exc_info[1]
    return error


def say_in(log_format: LogFormat, text: str, *, level: str, address: str) -> None:
    """Print a remark of the program itself on stderr: as it is, or as a JSON line like those of the log."""
    if log_format == "text":
        say(text)
        return
    record = logging.LogRecord("redis_message_queue.worker", logging.getLevelName(level.upper()), "", 0, text, (), None)
    record.address = address
    # In one write: a worker process may print a line at the same time.
    sys.stderr.write(JsonFormatter(tracebacks=False).format(record) + "\n")
    sys.stderr.flush()
