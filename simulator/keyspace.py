"""The keys of a simulated Redis server, and the commands that the library uses on them.

Commands take and return what Redis does: bytes, integers, lists and None. A command knows whether it writes and whether
a full server refuses it. `tests/model` compares all of this with real servers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Arguments = list[bytes]
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."


class RedisError(Exception):
    """An error reply of the server."""


class SortedSet:
    """Members with scores, in order when somebody asks for it."""

    __slots__ = ("_order", "scores")

    def __init__(self, scores: dict[bytes, float] | None = None) -> None:
        self.scores: dict[bytes, float] = scores or {}
        self._order: list[tuple[float, bytes]] | None = None

    def copy(self) -> SortedSet:
        other = SortedSet(self.scores.copy())
        other._order = self._order  # which a change replaces
        return other

    def add(self, member: bytes, score: float) -> bool:
        """Whether the member is new."""
        known = member in self.scores
        if not known or self.scores[member] != score:
            self.scores[member] = score
            self._order = None
        return not known

    def remove(self, member: bytes) -> bool:
        if self.scores.pop(member, None) is None:
            return False
        self._order = None
        return True

    @property
    def order(self) -> list[tuple[float, bytes]]:
        """Pairs of score and member, the lowest first."""
        if self._order is None:
            self._order = sorted(zip(self.scores.values(), self.scores, strict=True))
        return self._order

    def between(self, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        """The pairs whose score is in a range; a bound that begins with a parenthesis is not part of it."""
        order = self.order
        first = _place(order, low, bisect_right if low[:1] == b"(" else bisect_left)
        last = _place(order, high, bisect_left if high[:1] == b"(" else bisect_right)
        return order[first:last]


def _place(order: list[tuple[float, bytes]], bound: bytes, bisect: Callable[..., int]) -> int:
    return bisect(order, float(bound.lstrip(b"(")), key=lambda pair: pair[0])


class Stream:
    """Entries in the order of their ids."""

    __slots__ = ("entries", "last")

    def __init__(self, entries: Iterable[tuple[tuple[int, int], list[bytes]]] = (), last: tuple[int, int] = (0, 0)):
        self.entries = list(entries)
        self.last = last

    def copy(self) -> Stream:
        return Stream(self.entries, self.last)

    def add(self, milliseconds: int, fields: list[bytes]) -> bytes:
        newest = (milliseconds, 0) if milliseconds > self.last[0] else (self.last[0], self.last[1] + 1)
        self.last = newest
        self.entries.append((newest, fields))
        return _entry_id(newest)


def _entry_id(number: tuple[int, int]) -> bytes:
    return b"%d-%d" % number


class Hash(dict[bytes, bytes]):
    """Fields and values, in the order in which they came."""


class List(list[bytes]):
    """Elements, the left end first."""


class Set(set[bytes]):
    """Members without an order."""


Value = bytes | List | Hash | Set | SortedSet | Stream
_COPIED: dict[type, Callable[[Any], Any]] = {
    bytes: bytes,
    List: List,
    Hash: Hash,
    Set: Set,
    SortedSet: SortedSet.copy,
    Stream: Stream.copy,
}


def copied(value: Value) -> Any:
    """The same, for somebody who may change it."""
    return _COPIED[type(value)](value)


class Command(NamedTuple):
    """What a command does, whether it writes, and whether a full server refuses it."""

    run: Callable[[Keyspace, Arguments], Any]
    writes: bool
    needs_memory: bool
    arguments: int  # at least, the name not counted


COMMANDS: dict[bytes, Command] = {}


def command(
    arguments: int, *, writes: bool = False, needs_memory: bool = False
) -> Callable[[Callable[[Keyspace, Arguments], Any]], Callable[[Keyspace, Arguments], Any]]:
    """Register a method as the command of its name."""

    def register(function: Callable[[Keyspace, Arguments], Any]) -> Callable[[Keyspace, Arguments], Any]:
        COMMANDS[function.__name__.upper().encode()] = Command(function, writes, needs_memory, arguments)
        return function

    return register


class Keyspace:
    """All keys of a server, with the time at which some of them expire."""

    def __init__(self) -> None:
        self.values: dict[bytes, Value] = {}
        self.expires_us: dict[bytes, int] = {}
        self.now_us = 0
        self.changed: set[bytes] = set()  # since somebody last emptied it

    def copy(self) -> Keyspace:
        """A second keyspace with the same content: a replica, or what is on disk."""
        other = Keyspace()
        other.values = {key: _COPIED[type(value)](value) for key, value in self.values.items()}
        other.expires_us = self.expires_us.copy()
        other.now_us = self.now_us
        return other

    def execute(self, name: bytes, arguments: Arguments) -> Any:
        """Run one command."""
        found = COMMANDS.get(name)
        if found is None:
            raise RedisError(f"ERR unknown command '{name.decode()}'")
        if len(arguments) < found.arguments:
            raise RedisError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        return found.run(self, arguments)

    def advance(self, now_us: int) -> list[bytes]:
        """Let time pass. Returns the keys that expired."""
        self.now_us = now_us
        gone = [key for key, at in self.expires_us.items() if at <= now_us] if self.expires_us else []
        for key in gone:
            self._delete(key)
        return gone

    def _get(self, key: bytes, kind: type[T]) -> T | None:
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is not kind:
            raise RedisError(WRONG_TYPE)
        return value

    def _open(self, key: bytes, kind: type[T]) -> T:
        value = self._get(key, kind)
        if value is None:
            value = kind()
            self.values[key] = value  # type: ignore[assignment]  # kind is one of the types of a value
        self.changed.add(key)
        return value

    def _delete(self, key: bytes) -> int:
        self.expires_us.pop(key, None)
        if self.values.pop(key, None) is None:
            return 0
        self.changed.add(key)
        return 1

    def _drop_if_empty(self, key: bytes, value: Any) -> None:
        if not value:
            self._delete(key)

    # -- any key

    @command(0)
    def ping(self, arguments: Arguments) -> bytes:
        return b"PONG"

    @command(1)
    def exists(self, keys: Arguments) -> int:
        return sum(key in self.values for key in keys)

    @command(1, writes=True)
    def unlink(self, keys: Arguments) -> int:
        return sum(self._delete(key) for key in keys)

    @command(1, writes=True)
    def del_(self, keys: Arguments) -> int:
        return sum(self._delete(key) for key in keys)

    @command(2, writes=True)
    def rename(self, arguments: Arguments) -> Status:
        key, new = arguments
        if key not in self.values:
            raise RedisError("ERR no such key")
        value, expires = self.values[key], self.expires_us.get(key)
        self._delete(key)
        self._delete(new)
        self.values[new] = value
        if expires is not None:
            self.expires_us[new] = expires
        self.changed.add(new)
        return OK

    @command(2, writes=True)
    def pexpire(self, arguments: Arguments) -> int:
        key, milliseconds = arguments
        if key not in self.values:
            return 0
        self.expires_us[key] = self.now_us + _integer(milliseconds) * 1000
        self.changed.add(key)
        return 1

    @command(1)
    def pttl(self, arguments: Arguments) -> int:
        if arguments[0] not in self.values:
            return -2
        expires = self.expires_us.get(arguments[0])
        return -1 if expires is None else (expires - self.now_us) // 1000

    @command(0)
    def time(self, _: Arguments) -> list[bytes]:
        return [b"%d" % (self.now_us // 1_000_000), b"%d" % (self.now_us % 1_000_000)]

    # -- strings

    @command(1)
    def get(self, arguments: Arguments) -> bytes | None:
        return self._get(arguments[0], bytes)

    def _set(self, key: bytes, value: bytes, milliseconds: int | None) -> None:
        self.values[key] = value
        self.changed.add(key)
        if milliseconds is None:
            self.expires_us.pop(key, None)
        else:
            self.expires_us[key] = self.now_us + milliseconds * 1000

    @command(3, writes=True, needs_memory=True)
    def psetex(self, arguments: Arguments) -> Status:
        key, milliseconds, value = arguments
        self._set(key, value, _integer(milliseconds))
        return OK

    @command(2, writes=True, needs_memory=True)
    def set(self, arguments: Arguments) -> Status | None:
        key, value, *options = arguments
        milliseconds = None
        while options:
            option = options.pop(0).upper()
            if option == b"PX":
                milliseconds = _integer(options.pop(0))
            elif (option == b"XX" and key not in self.values) or (option == b"NX" and key in self.values):
                return None
        self._set(key, value, milliseconds)
        return OK

    @command(2, writes=True, needs_memory=True)
    def incrby(self, arguments: Arguments) -> int:
        key, change = arguments
        number = _integer(self._get(key, bytes) or b"0") + _integer(change)
        self.values[key] = b"%d" % number
        self.changed.add(key)
        return number

    @command(2, writes=True, needs_memory=True)
    def decrby(self, arguments: Arguments) -> int:
        key, change = arguments
        return int(Keyspace.incrby(self, [key, b"%d" % -_integer(change)]))

    # -- lists

    @command(1)
    def llen(self, arguments: Arguments) -> int:
        return len(self._get(arguments[0], List) or ())

    @command(2, writes=True, needs_memory=True)
    def lpush(self, arguments: Arguments) -> int:
        elements = self._open(arguments[0], List)
        elements[:0] = reversed(arguments[1:])
        return len(elements)

    @command(2, writes=True, needs_memory=True)
    def rpush(self, arguments: Arguments) -> int:
        elements = self._open(arguments[0], List)
        elements.extend(arguments[1:])
        return len(elements)

    def _pop(self, arguments: Arguments, place: int) -> bytes | list[bytes] | None:
        elements = self._get(arguments[0], List)
        if elements is None:
            return None
        count = _integer(arguments[1]) if len(arguments) > 1 else 1
        gone = [elements.pop(place) for _ in range(min(count, len(elements)))]
        self.changed.add(arguments[0])
        self._drop_if_empty(arguments[0], elements)
        return gone if len(arguments) > 1 else gone[0]

    @command(1, writes=True)
    def lpop(self, arguments: Arguments) -> bytes | list[bytes] | None:
        return self._pop(arguments, 0)

    @command(1, writes=True)
    def rpop(self, arguments: Arguments) -> bytes | list[bytes] | None:
        return self._pop(arguments, -1)

    @command(2)
    def lindex(self, arguments: Arguments) -> bytes | None:
        elements, place = self._get(arguments[0], List) or List(), _integer(arguments[1])
        return elements[place] if -len(elements) <= place < len(elements) else None

    @command(3)
    def lrange(self, arguments: Arguments) -> list[bytes]:
        elements = self._get(arguments[0], List) or List()
        return _slice(elements, _integer(arguments[1]), _integer(arguments[2]))

    @command(3, writes=True)
    def ltrim(self, arguments: Arguments) -> Status:
        elements = self._get(arguments[0], List)
        if elements is not None:
            elements[:] = _slice(elements, _integer(arguments[1]), _integer(arguments[2]))
            self.changed.add(arguments[0])
            self._drop_if_empty(arguments[0], elements)
        return OK

    @command(3, writes=True, needs_memory=True)
    def lset(self, arguments: Arguments) -> Status:
        elements, place = self._get(arguments[0], List), _integer(arguments[1])
        if elements is None:
            raise RedisError("ERR no such key")
        if not -len(elements) <= place < len(elements):
            raise RedisError("ERR index out of range")
        elements[place] = arguments[2]
        self.changed.add(arguments[0])
        return OK

    @command(3, writes=True)
    def lrem(self, arguments: Arguments) -> int:
        elements, count = self._get(arguments[0], List), _integer(arguments[1])
        if elements is None:
            return 0
        places = [place for place, element in enumerate(elements) if element == arguments[2]]
        chosen = places if count == 0 else places[:count] if count > 0 else places[count:]
        for place in reversed(chosen):
            del elements[place]
        if chosen:
            self.changed.add(arguments[0])
            self._drop_if_empty(arguments[0], elements)
        return len(chosen)

    # -- hashes

    @command(1)
    def hlen(self, arguments: Arguments) -> int:
        return len(self._get(arguments[0], Hash) or ())

    @command(2)
    def hget(self, arguments: Arguments) -> bytes | None:
        return (self._get(arguments[0], Hash) or Hash()).get(arguments[1])

    @command(2)
    def hmget(self, arguments: Arguments) -> list[bytes | None]:
        fields = self._get(arguments[0], Hash) or Hash()
        return [fields.get(field) for field in arguments[1:]]

    @command(1)
    def hgetall(self, arguments: Arguments) -> list[bytes]:
        fields = self._get(arguments[0], Hash) or Hash()
        return [part for pair in fields.items() for part in pair]

    @command(2)
    def hexists(self, arguments: Arguments) -> int:
        return int(arguments[1] in (self._get(arguments[0], Hash) or Hash()))

    @command(2)
    def hstrlen(self, arguments: Arguments) -> int:
        return len((self._get(arguments[0], Hash) or Hash()).get(arguments[1], b""))

    @command(3, writes=True, needs_memory=True)
    def hset(self, arguments: Arguments) -> int:
        fields, new = self._open(arguments[0], Hash), 0
        for field, value in zip(arguments[1::2], arguments[2::2], strict=True):
            new += field not in fields
            fields[field] = value
        return new

    @command(3, writes=True, needs_memory=True)
    def hsetnx(self, arguments: Arguments) -> int:
        key, field, value = arguments
        fields = self._get(key, Hash) or Hash()
        if field in fields:
            return 0
        self._open(key, Hash)[field] = value
        return 1

    @command(2, writes=True)
    def hdel(self, arguments: Arguments) -> int:
        fields = self._get(arguments[0], Hash)
        if fields is None:
            return 0
        gone = sum(fields.pop(field, None) is not None for field in arguments[1:])
        if gone:
            self.changed.add(arguments[0])
            self._drop_if_empty(arguments[0], fields)
        return gone

    @command(3, writes=True, needs_memory=True)
    def hincrby(self, arguments: Arguments) -> int:
        key, field, change = arguments
        before = (self._get(key, Hash) or Hash()).get(field, b"0")
        number = _integer(before, "ERR hash value is not an integer") + _integer(change)
        self._open(key, Hash)[field] = b"%d" % number
        return number

    @command(2)
    def hscan(self, arguments: Arguments) -> list[Any]:
        """Everything at once, as Redis does with a small hash."""
        return [b"0", Keyspace.hgetall(self, arguments[:1])]

    # -- sorted sets

    def _sorted(self, key: bytes) -> SortedSet:
        return self._get(key, SortedSet) or SortedSet()

    @command(1)
    def zcard(self, arguments: Arguments) -> int:
        return len(self._sorted(arguments[0]).scores)

    @command(2)
    def zscore(self, arguments: Arguments) -> bytes | None:
        return _score(self._sorted(arguments[0]).scores.get(arguments[1]))

    @command(2)
    def zmscore(self, arguments: Arguments) -> list[bytes | None]:
        scores = self._sorted(arguments[0]).scores
        return [_score(scores.get(member)) for member in arguments[1:]]

    @command(2)
    def zrank(self, arguments: Arguments) -> int | None:
        members = [member for _, member in self._sorted(arguments[0]).order]
        return members.index(arguments[1]) if arguments[1] in members else None

    @command(2, writes=True, needs_memory=True)
    def sadd(self, arguments: Arguments) -> int:
        members = self._open(arguments[0], Set)
        before = len(members)
        members.update(arguments[1:])
        return len(members) - before

    @command(3, writes=True, needs_memory=True)
    def zadd(self, arguments: Arguments) -> int:
        members = self._open(arguments[0], SortedSet)
        pairs = zip(arguments[1::2], arguments[2::2], strict=True)
        return sum([members.add(member, float(score)) for score, member in pairs])

    @command(2, writes=True)
    def zrem(self, arguments: Arguments) -> int:
        members = self._get(arguments[0], SortedSet)
        if members is None:
            return 0
        gone = sum([members.remove(member) for member in arguments[1:]])
        if gone:
            self.changed.add(arguments[0])
            self._drop_if_empty(arguments[0], members.scores)
        return gone

    @command(3, writes=True)
    def zremrangebyrank(self, arguments: Arguments) -> int:
        order = self._sorted(arguments[0]).order
        members = [member for _, member in _slice(order, _integer(arguments[1]), _integer(arguments[2]))]
        return int(Keyspace.zrem(self, [arguments[0], *members]))

    @command(3)
    def zrange(self, arguments: Arguments) -> list[bytes]:
        order = self._sorted(arguments[0]).order
        return _pairs(_slice(order, _integer(arguments[1]), _integer(arguments[2])), arguments[3:])

    @command(3)
    def zrangebyscore(self, arguments: Arguments) -> list[bytes]:
        found = self._sorted(arguments[0]).between(arguments[1], arguments[2])
        return _pairs(_limited(found, arguments[3:]), arguments[3:])

    @command(3)
    def zrevrangebyscore(self, arguments: Arguments) -> list[bytes]:
        found = self._sorted(arguments[0]).between(arguments[2], arguments[1])[::-1]
        return _pairs(_limited(found, arguments[3:]), arguments[3:])

    @command(3)
    def zcount(self, arguments: Arguments) -> int:
        return len(self._sorted(arguments[0]).between(arguments[1], arguments[2]))

    @command(3)
    def zlexcount(self, arguments: Arguments) -> int:
        """Of members that all have the same score, between bounds like `[a` and `(b`."""
        low, high = arguments[1], arguments[2]
        members = [member for _, member in self._sorted(arguments[0]).order]
        first = (bisect_right if low[:1] == b"(" else bisect_left)(members, low[1:])
        return max(0, (bisect_left if high[:1] == b"(" else bisect_right)(members, high[1:]) - first)

    @command(1)
    def zrandmember(self, arguments: Arguments) -> list[bytes]:
        """The first ones: any choice is a random one."""
        return [member for _, member in self._sorted(arguments[0]).order[: _integer(arguments[1])]]

    @command(2)
    def zscan(self, arguments: Arguments) -> list[Any]:
        """Everything at once, as Redis does with a small set."""
        return [b"0", _pairs(self._sorted(arguments[0]).order, [b"WITHSCORES"])]

    # -- streams

    @command(1)
    def xlen(self, arguments: Arguments) -> int:
        stream = self._get(arguments[0], Stream)
        return len(stream.entries) if stream else 0

    @command(4, writes=True, needs_memory=True)
    def xadd(self, arguments: Arguments) -> bytes:
        return self._open(arguments[0], Stream).add(self.now_us // 1000, arguments[2:])

    def _read(self, key: bytes, options: Arguments, backwards: bool) -> list[Any]:
        stream = self._get(key, Stream)
        entries = stream.entries if stream else []
        count = _integer(options[1]) if options else len(entries)
        chosen = entries[::-1][:count] if backwards else entries[:count]
        return [[_entry_id(number), fields] for number, fields in chosen]

    @command(3)
    def xrange(self, arguments: Arguments) -> list[Any]:
        """From the beginning to the end: the library asks for nothing else."""
        return self._read(arguments[0], arguments[3:], backwards=False)

    @command(3)
    def xrevrange(self, arguments: Arguments) -> list[Any]:
        return self._read(arguments[0], arguments[3:], backwards=True)

    @command(3, writes=True)
    def xtrim(self, arguments: Arguments) -> int:
        """Only what is exact; with '~' a real server keeps whole nodes of a hundred entries, and so does this one."""
        stream = self._get(arguments[0], Stream)
        if stream is None or arguments[2] == b"~":
            return 0
        surplus = max(0, len(stream.entries) - _integer(arguments[-1]))
        del stream.entries[:surplus]
        self.changed.add(arguments[0])
        return surplus


COMMANDS[b"DEL"] = COMMANDS.pop(b"DEL_")


class Status(str):
    """A reply such as OK."""


OK = Status("OK")


def _integer(text: bytes, error: str = "ERR value is not an integer or out of range") -> int:
    try:
        return int(text)
    except ValueError:
        raise RedisError(error) from None


def _slice(elements: Sequence[T], first: int, last: int) -> list[T]:
    length = len(elements)
    first = max(0, first + length) if first < 0 else first
    last = last + length if last < 0 else last
    return list(elements[first : last + 1]) if last >= first else []


def _limited(found: list[T], options: Arguments) -> list[T]:
    if b"LIMIT" not in options:
        return found
    at = options.index(b"LIMIT")
    offset, count = _integer(options[at + 1]), _integer(options[at + 2])
    return found[offset:] if count < 0 else found[offset : offset + count]


def _score(score: float | None) -> bytes | None:
    if score is None:
        return None
    if math.isinf(score):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % score if score == int(score) and abs(score) < 1e17 else b"%.17g" % score


def _pairs(found: Sequence[tuple[float, bytes]], options: Arguments) -> list[bytes]:
    if b"WITHSCORES" not in options:
        return [member for _, member in found]
    return [part for score, member in found for part in (member, _score(score) or b"")]
