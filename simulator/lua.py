"""Runs the library's Lua scripts, in Lua 5.1 as Redis does, on a simulated keyspace."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from lupa.lua51 import LuaError, LuaRuntime, lua_type

from redis_message_queue.stored.scripts import Script
from simulator.keyspace import COMMANDS, OK, OUT_OF_MEMORY, Keyspace, RedisError

Argument = bytes | str | int
_SPREAD = 100  # so many values are handed over one by one; more of them in a table
_MOST_KEYS = 5000  # tuples of keys that are remembered as tables

# What Python returns after `true` becomes a table. A reply that is a plain table becomes several values after `true`.
_CALLING = (
    b"""local function made(first, ...)
  if first == true then return {...} end
  return first
end
local function call(python)
  return function(...) return made(python(...)) end
end
local function spread(script)
  return function(keys, ...)
    local reply = script(keys, {...})
    if type(reply) ~= 'table' or reply.err or reply.ok or #reply == 0 or #reply > %d then return reply end
    return true, unpack(reply, 1, #reply)
  end
end
return call, spread"""
    % _SPREAD
)


class _Stop(Exception):
    """Carries the error of a `redis.call` out of a script."""

    def __init__(self, error: RedisError) -> None:
        super().__init__(str(error))
        self.error = error


class Interpreter:
    """One Lua for all scripts: they share no state but the keys."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table = self._lua.table_from
        self._functions: dict[str, tuple[Any, Any]] = {}
        self._keys: dict[tuple[str, ...], Any] = {}
        self._keyspace: Keyspace | None = None
        self._is_full = self._has_written = False
        self._ok = self._table({b"ok": b"OK"})
        names = self._lua.globals()
        call, self._spread = self._lua.execute(_CALLING)
        names[b"redis"] = self._table(
            {
                b"call": call(self._call),
                b"pcall": call(self._pcall),
                b"sha1hex": lambda text: hashlib.sha1(text).hexdigest().encode(),
            }
        )
        names[b"struct"] = self._table({b"pack": _pack_number, b"unpack": self._lua.eval(_UNPACK_NUMBERS)})
        names[b"cmsgpack"] = self._table({b"pack": _pack, b"unpack": lambda text: self._to_lua(unpacked(text))})
        names[b"cjson"] = self._table({b"encode": lambda table: _dumps(_to_json(table)), b"decode": self._decode_json})

    def run(
        self, script: Script, keyspace: Keyspace, keys: tuple[str, ...], arguments: Sequence[Argument], *, is_full: bool
    ) -> Any:
        """Execute a script. Raises a `RedisError` where the server would answer with one."""
        functions = self._functions.get(script.source)
        if functions is None:
            functions = self._functions[script.source] = self._compiled(script)
        self._keyspace, self._is_full, self._has_written = keyspace, is_full, False
        key_table = self._keys.get(keys)
        if key_table is None:
            key_table = self._remembered(keys)
        given = [one if type(one) is bytes else as_bytes(one) for one in arguments]
        try:
            if len(given) > _SPREAD:
                return _to_reply(functions[0](key_table, self._table(given)))
            reply = functions[1](key_table, *given)
            return _from_spread(reply) if type(reply) is tuple else _to_reply(reply)
        except _Stop as stop:
            raise stop.error from None
        except LuaError as error:
            raise RedisError(f"ERR {_message(error)}") from None

    def _compiled(self, script: Script) -> tuple[Any, Any]:
        """A function of two tables, and one that takes the arguments one by one and returns them so."""
        function = self._lua.execute(b"return function(KEYS, ARGV) " + script.source.encode() + b"\nend")
        return function, self._spread(function)

    def _remembered(self, keys: tuple[str, ...]) -> Any:
        """The table of these keys. No script writes to it, and most keys are given again and again."""
        if len(self._keys) >= _MOST_KEYS:
            self._keys.clear()
        self._keys[keys] = self._table([as_bytes(key) for key in keys])
        return self._keys[keys]

    @property
    def has_written(self) -> bool:
        """Whether the last script got as far as a write."""
        return self._has_written

    def _call(self, name: bytes, *given: Any) -> Any:
        try:
            reply = self._execute(name, given)
        except RedisError as error:
            raise _Stop(error) from None
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if kind is list and len(reply) <= _SPREAD:
            # Several values, of which Lua makes a table, are cheaper than a table.
            return True, *[one if type(one) is bytes else self._to_lua(one) for one in reply]
        return self._to_lua(reply)

    def _pcall(self, name: bytes, *given: Any) -> Any:
        try:
            return self._to_lua(self._execute(name, given))
        except RedisError as error:
            return self._table({b"err": str(error).encode()})

    def _execute(self, name: bytes, given: Sequence[Any]) -> Any:
        keyspace = self._keyspace
        assert keyspace is not None
        arguments = [one if type(one) is bytes else _number(one) for one in given]
        found = COMMANDS.get(name)
        if found is None or len(arguments) < found[3]:
            return keyspace.execute(name, arguments)  # raises
        run, writes, needs_memory, _ = found
        if writes:
            # Redis looks at its memory at the first write of a script only.
            if needs_memory and self._is_full and not self._has_written:
                raise RedisError(OUT_OF_MEMORY)
            self._has_written = True
        return run(keyspace, arguments)

    def _to_lua(self, reply: Any) -> Any:
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is list:
            # The elements of most lists are bytes, or None.
            return self._table([one if type(one) is bytes else self._to_lua(one) for one in reply])
        if reply is OK:
            return self._ok
        if kind is dict:
            return self._table({name: self._to_lua(one) for name, one in reply.items()})
        return reply

    def _decode_json(self, text: bytes) -> Any:
        try:
            return self._to_lua(_from_json(json.loads(text)))
        except ValueError as error:
            raise _Stop(RedisError(f"ERR {error}")) from None


@cache
def interpreter() -> Interpreter:
    """The one of this process, which compiles each script once."""
    return Interpreter()


def as_bytes(argument: Argument) -> bytes:
    if isinstance(argument, bytes):
        return argument
    return argument.encode() if isinstance(argument, str) else b"%d" % argument


def _number(value: Any) -> bytes:
    """A Lua number as an argument of a command."""
    if type(value) is int:
        return b"%d" % value
    if type(value) is not float:
        raise RedisError("ERR Lua redis lib command arguments must be strings or integers")
    return b"%d" % value if value == int(value) else b"%.17g" % value


def _message(error: LuaError) -> str:
    return str(error).splitlines()[0].removeprefix("error: ")


def _to_reply(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, int | float):
        return int(value)
    if lua_type(value) == "table":
        if value[b"err"] is not None:
            raise RedisError(value[b"err"].decode())
        if value[b"ok"] is not None:
            return value[b"ok"]
        return [_to_reply(one) for one in _elements(value)]
    raise TypeError(f"a script returned {value!r}")


def _from_spread(values: tuple[Any, ...]) -> list[Any]:
    """The elements of a reply, which follow `true`, up to the first nil."""
    found = []
    for value in values[1:]:
        if value is None:
            break
        found.append(value if type(value) is bytes else _to_reply(value))
    return found


def _elements(table: Any) -> list[Any]:
    """The array part, up to the first nil."""
    found = []
    for place in range(1, len(table) + 1):
        value = table[place]
        if value is None:
            break
        found.append(value)
    return found


def _pack_number(form: bytes, value: float) -> bytes:
    size = int(form[2:])
    return int(value).to_bytes(size, "big")


# In Lua, because a function of Python returns one value.
_UNPACK_NUMBERS = b"""function(form, text)
  local found, at = {}, 1
  for size in string.gmatch(form, 'I(%d)') do
    local number = 0
    for place = at, at + size - 1 do number = number * 256 + string.byte(text, place) end
    found[#found + 1], at = number, at + size
  end
  return unpack(found)
end"""


# -- JSON: bytes of a Lua string stand for UTF-8


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if lua_type(value) == "table":
        if len(value):
            return [_to_json(one) for one in _elements(value)]
        return {_to_json(name): _to_json(one) for name, one in value.items()}
    return value


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")


def _from_json(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return {name.encode(): _from_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_from_json(one) for one in value]
    return value


# -- MessagePack, as far as the scripts use it


def _pack(value: Any) -> bytes:
    if isinstance(value, bytes):
        return _head(len(value), 0xA0, 32, (b"\xd9", b"\xda", b"\xdb")) + value
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 128 else b"\xd3" + struct.pack(">q", value)
    length = len(value)
    if length or not list(value):
        return _head(length, 0x90, 16, (None, b"\xdc", b"\xdd")) + b"".join(_pack(one) for one in _elements(value))
    pairs = list(value.items())
    return _head(len(pairs), 0x80, 16, (None, b"\xde", b"\xdf")) + b"".join(
        _pack(part) for pair in pairs for part in pair
    )


def _head(length: int, short: int, limit: int, kinds: tuple[bytes | None, bytes, bytes]) -> bytes:
    if length < limit:
        return bytes([short + length])
    for kind, size in zip(kinds, (1, 2, 4), strict=True):
        if kind is not None and length < 1 << 8 * size:
            return kind + length.to_bytes(size, "big")
    raise ValueError("too long")


def unpacked(text: bytes) -> Any:
    """What a text in MessagePack says."""
    return _unpack_at(text, 0)[0]


def _unpack_at(text: bytes, at: int) -> tuple[Any, int]:
    kind = text[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind == 0xD3:
        return struct.unpack_from(">q", text, at)[0], at + 8
    if kind in (0xD9, 0xDA, 0xDB) or 0xA0 <= kind < 0xC0:
        length, at = _length(text, at, kind, 0xA0, 0xD9)
        return text[at : at + length], at + length
    if kind in (0xDC, 0xDD) or 0x90 <= kind < 0xA0:
        length, at = _length(text, at, kind, 0x90, 0xDB)
        elements = []
        for _ in range(length):
            element, at = _unpack_at(text, at)
            elements.append(element)
        return elements, at
    length, at = _length(text, at, kind, 0x80, 0xDD)
    pairs: dict[Any, Any] = {}
    for _ in range(length):
        name, at = _unpack_at(text, at)
        pairs[name], at = _unpack_at(text, at)
    return pairs, at


def _length(text: bytes, at: int, kind: int, short: int, first_long: int) -> tuple[int, int]:
    """The length that a head tells: in the same byte, or in one, two or four that follow."""
    if kind < 0xC0:
        return kind - short, at
    size = 1 << (kind - first_long)
    return int.from_bytes(text[at : at + size], "big"), at + size
