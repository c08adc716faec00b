"""Runs the library's Lua scripts, in Lua 5.1 as Redis does, on a simulated keyspace."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

from lupa.lua51 import LuaError, LuaRuntime, lua_type

from redis_message_queue.scripts import Script
from simulator.keyspace import COMMANDS, OUT_OF_MEMORY, Keyspace, RedisError, Status

Argument = bytes | str | int


class _Stop(Exception):
    """Carries the error of a `redis.call` out of a script."""

    def __init__(self, error: RedisError) -> None:
        super().__init__(str(error))
        self.error = error


class Interpreter:
    """One Lua for all scripts: they share no state but the keys."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=False)
        self._functions: dict[str, Any] = {}
        self._keyspace: Keyspace | None = None
        self._is_full = self._has_written = False
        names = self._lua.globals()
        names[b"redis"] = self._lua.table_from(
            {
                b"call": self._call,
                b"pcall": self._pcall,
                b"sha1hex": lambda text: hashlib.sha1(text).hexdigest().encode(),
            }
        )
        names[b"struct"] = self._lua.table_from({b"pack": _pack_number, b"unpack": self._lua.eval(_UNPACK_NUMBERS)})
        names[b"cmsgpack"] = self._lua.table_from({b"pack": _pack, b"unpack": lambda text: self._to_lua(_unpack(text))})
        names[b"cjson"] = self._lua.table_from(
            {b"encode": lambda table: _dumps(_to_json(table)), b"decode": self._decode_json}
        )

    def run(
        self, script: Script, keyspace: Keyspace, keys: Sequence[str], arguments: Sequence[Argument], *, is_full: bool
    ) -> Any:
        """Execute a script. Raises a `RedisError` where the server would answer with one."""
        function = self._functions.get(script.source)
        if function is None:
            text = b"return function(KEYS, ARGV) " + script.source.encode() + b"\nend"
            function = self._functions[script.source] = self._lua.execute(text)
        self._keyspace, self._is_full, self._has_written = keyspace, is_full, False
        tables = (
            self._lua.table_from([key.encode() if isinstance(key, str) else key for key in keys]),
            self._lua.table_from([as_bytes(argument) for argument in arguments]),
        )
        try:
            return _to_reply(function(*tables))
        except _Stop as stop:
            raise stop.error from None
        except LuaError as error:
            raise RedisError(f"ERR {_message(error)}") from None

    @property
    def has_written(self) -> bool:
        """Whether the last script got as far as a write."""
        return self._has_written

    def _call(self, *given: Any) -> Any:
        try:
            reply = self._execute(given)
        except RedisError as error:
            raise _Stop(error) from None
        kind = type(reply)
        return reply if kind is int or kind is bytes else self._to_lua(reply)

    def _pcall(self, *given: Any) -> Any:
        try:
            return self._to_lua(self._execute(given))
        except RedisError as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _execute(self, given: Sequence[Any]) -> Any:
        keyspace, name = self._keyspace, given[0]
        assert keyspace is not None
        arguments = [one if type(one) is bytes else _number(one) for one in given[1:]]
        found = COMMANDS.get(name)
        if found is None or len(arguments) < found.arguments:
            return keyspace.execute(name, arguments)  # raises
        if found.writes:
            # Redis looks at its memory at the first write of a script only.
            if found.needs_memory and self._is_full and not self._has_written:
                raise RedisError(OUT_OF_MEMORY)
            self._has_written = True
        return found.run(keyspace, arguments)

    def _to_lua(self, reply: Any) -> Any:
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is list:
            return self._lua.table_from([self._to_lua(one) for one in reply])
        if kind is Status:
            return self._lua.table_from({b"ok": reply.encode()})
        if kind is dict:
            return self._lua.table_from({name: self._to_lua(one) for name, one in reply.items()})
        return reply

    def _decode_json(self, text: bytes) -> Any:
        try:
            return self._to_lua(_from_json(json.loads(text)))
        except ValueError as error:
            raise _Stop(RedisError(f"ERR {error}")) from None


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


def _unpack(text: bytes) -> Any:
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
