"""Reads the lists and hashes of a queue in replies of bounded size."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

from redis_message_queue.process.identity import consumer_name
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.port import Argument, Command
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.envelope import PROCESS_BYTES
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.checks import whole_number
from redis_message_queue.values.errors import ConfigurationError, PartitionCountError
from redis_message_queue.values.plain_values import brief, is_text, printable

PAGE = 500  # elements of a list that is read from end to end
TENANTS = 500  # whose queues one script reads
FIRST_SCAN = 10  # fields of a hash whose values may have any size
_MOST = 10_000  # that one call of an operator returns

READ_PAGE = Command(script("read_page"), ())


class ListPart(NamedTuple):
    """Elements of a list, counted from one of its ends."""

    key: str | bytes
    side: str
    first: int
    number: int

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return (self.side, self.first, self.number)

    def without(self, read: int) -> ListPart | None:
        """Return what is left after the first ``read`` elements."""
        return self._replace(first=self.first + read, number=self.number - read) if read < self.number else None


class HashPart(NamedTuple):
    """Fields of a hash."""

    key: str
    fields: tuple[bytes, ...]

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return ("hash", len(self.fields), *self.fields)

    def without(self, read: int) -> HashPart | None:
        """Return what is left after the first ``read`` fields."""
        return self._replace(fields=self.fields[read:]) if read < len(self.fields) else None


class PageReader:
    """Reads what a queue has in Redis, as much as is asked for, in as many replies as that takes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.keys = keys = calls.keys
        # Whether it is known that there are no partitions: one that reads the first alone would tell half of the truth.
        self._is_checked = calls.partitions > 1  # these are checked as a whole
        self.lists = keys.terminal_lists

    async def send(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Return the replies to plain commands, which are sent together."""
        if self._is_checked:
            return await self._calls.pipeline(self.keys.pending, commands, "look")
        look = ("HMGET", self.keys.counted, "partitions")
        (found,), *replies = await self._calls.pipeline(self.keys.pending, (look, *commands), "look")
        refuse_other_count(found, self._calls.partitions)
        self._is_checked = True
        return replies

    async def server_time(self) -> int:
        """Return the microseconds since 1970 by the server's clock."""
        ((seconds, microseconds),) = await self.send(("TIME",))
        return int(seconds) * 1_000_000 + int(microseconds)

    async def consumers(self, named: Iterable[bytes]) -> dict[bytes, str]:
        """Return the readable name of each process that claim tokens name; what is no process is left out."""
        processes = sorted({process for process in named if len(process) == PROCESS_BYTES})
        if not processes:
            return {}
        # Not GET: it would fail for a key that another program has made.
        (stored,) = await self.send(("MGET", *(self.keys.consumer_name(one.hex()) for one in processes)))
        return {
            process: printable(name) if name else consumer_name(process)
            for process, name in zip(processes, stored, strict=True)
        }

    def tenant_queue(self, tenant: bytes) -> bytes:
        """Return the key of a tenant's queue. The tenant is given as bytes, because it need not be UTF-8."""
        return self.keys.tenant_pending("").encode() + tenant

    async def read(self, parts: Sequence[ListPart | HashPart]) -> list[list[Any]]:
        """Return the elements of each part.

        The queue may change between two replies. If somebody trims a list meanwhile, an element can be missing or
        come twice.
        """
        if not self._is_checked:
            await self.send()
        found: list[list[Any]] = [[] for _ in parts]
        left: deque[tuple[int, ListPart | HashPart]] = deque(enumerate(parts))
        while left:
            asked = list(itertools.islice(left, TENANTS))
            arguments = (MAX_MESSAGES, MAX_BYTES, *(one for _, part in asked for one in part.arguments))
            keys: tuple[Any, ...] = tuple(part.key for _, part in asked)  # bytes where a tenant is not UTF-8
            full, *pages = await self._calls.call(READ_PAGE, arguments, extra_keys=keys)
            for (place, _), page in zip(asked, pages, strict=False):
                found[place] += page
                left.popleft()
            if full:  # the last page may be incomplete
                place, part = asked[len(pages) - 1]
                if rest := part.without(len(pages[-1])):
                    left.appendleft((place, rest))
        return found

    async def read_list(self, key: str, side: str, first: int, count: int) -> list[bytes]:
        """Return ``count`` elements of a list."""
        (elements,) = await self.read([ListPart(key, side, first, count)])
        return elements

    async def read_fields(self, key: str, fields: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of fields of a hash, None for those that are not there."""
        parts = [HashPart(key, tuple(fields[at : at + MAX_MESSAGES])) for at in range(0, len(fields), MAX_MESSAGES)]
        return [value for values in await self.read(parts) for value in values]


def refuse_other_count(found: bytes | None, count: int) -> None:
    """Raise if the queue has another number of partitions: who reads with an old number would miss some."""
    if found is not None and found != b"%d" % count:
        has = found.decode("utf-8", "replace")
        raise PartitionCountError(
            f"this queue has partitions={has} in Redis, and this object was made with partitions={count}; nothing was "
            f"read or changed: make it with partitions={has}"
        )


def members_with_scores(found: Any) -> list[tuple[bytes, Any]]:
    """Return the pairs of a ZRANGE reply, in either protocol: RESP3 pairs them."""
    if found and isinstance(found[0], list):
        return [(member, score) for member, score in found]
    return list(zip(found[::2], found[1::2], strict=True))


def scanned_pairs(scanned: Any) -> list[tuple[bytes, bytes]]:
    """Return the pairs of an HSCAN or ZSCAN reply."""
    if isinstance(scanned, dict):
        return list(scanned.items())
    return list(zip(scanned[::2], scanned[1::2], strict=True))


def check_count(name: str, count: Any) -> None:
    """Raise unless the count is a whole number that one call can return."""
    whole_number(name, count)
    if count > _MOST:
        raise ConfigurationError(f"{name} must be at most {_MOST:,}, not {brief(count)}")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise unless the value is one of a `Literal`."""
    if not is_text(value) or value not in get_args(choices):
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, not {brief(value)}")
