"""The message that all contenders send: a dict whose JSON has 198 bytes and contains a number."""

import json
from itertools import count
from typing import Any

# Eighteen digits hold a monotonic clock in nanoseconds. In its JSON they are here:
_ID = slice(8, 26)

_numbers = count(1)


def payload(number: int) -> dict[str, Any]:
    """The message with that number."""
    line = {"sku": "A-1000000", "quantity": 2, "price": 1999}
    return {"id": f"{number:018}", "kind": "order", "customer": "c-000001", "paid": True, "lines": [line, dict(line)]}


def text(number: int) -> str:
    """The same message as JSON."""
    return json.dumps(payload(number))


SIZE = len(text(0))


def payloads(how_many: int) -> list[dict[str, Any]]:
    """Messages that this process has not sent before."""
    return [payload(next(_numbers)) for _ in range(how_many)]


def identity(message: dict[str, Any]) -> str:
    """The deduplication key, computed as cheaply as possible, so that the benchmark measures the queue."""
    return str(message["id"])


def number(message: str | bytes) -> int:
    """The number in a message that was received."""
    return int(message[_ID])
