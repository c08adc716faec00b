"""The message that everybody carries: 198 bytes of JSON with a number in it."""

from itertools import count

_LINE = '{"sku": "A-1000000", "quantity": 2, "price": 1999}'
# Eighteen digits hold a monotonic clock in nanoseconds.
_TEXT = f'{{"id": "%018d", "kind": "order", "customer": "c-000001", "paid": true, "lines": [{_LINE}, {_LINE}]}}'
_ID = slice(8, 26)

_numbers = count(1)


def payload(number: int) -> str:
    """The message of that number."""
    return _TEXT % number


SIZE = len(payload(0))


def payloads(how_many: int) -> list[str]:
    """Messages that this process has not sent before."""
    return [payload(next(_numbers)) for _ in range(how_many)]


def identity(message: str) -> str:
    """The deduplication key: as cheap as a key function can be, so that the queue is what is measured."""
    return message[_ID]


def number(message: str | bytes) -> int:
    """What `payload` was called with."""
    return int(message[_ID])
