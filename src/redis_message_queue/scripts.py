"""Finds the Lua scripts, puts their shared steps in, and reads from their headers which keys they want."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_LUA = files("redis_message_queue") / "lua"
_INCLUDE = re.compile(r"^ *--@include (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_COMMAND = re.compile(r"\(\s*'([A-Z]+)'")
_PASSED_ON = re.compile(r"(?<!redis\.call)(?<!redis\.pcall)\('([A-Z]+)'")
_KEYS = re.compile(r"^-- KEYS {2}(.*?)^-- (?:ARGV|Returns)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Script:
    """One verb: its source as the server gets it, its digest, and the names of its keys in their order."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    commands: tuple[str, ...]  # what it may call

    def commands_in(self, line: int) -> tuple[str, ...]:
        """What it may call in one line of its source, counted from 1 as Redis does.

        A line that passes on the command it was given may call any that such a function is given.
        """
        return commands_of(self.source.splitlines()[line - 1]) or tuple(sorted(set(_PASSED_ON.findall(self.source))))


@cache
def script(name: str) -> Script:
    """The script ``lua/<name>.lua``, read once."""
    source = with_includes((_LUA / f"{name}.lua").read_text("utf-8"))
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, digest, key_names(source), commands_of(source))


def with_includes(source: str) -> str:
    """Put the text of ``lib/<word>.lua`` where ``--@include <word>`` stands."""
    return _INCLUDE.sub(lambda found: (_LUA / "lib" / f"{found[1]}.lua").read_text("utf-8"), source)


def key_names(source: str) -> tuple[str, ...]:
    """The names in a header's KEYS paragraph: ``name: what it is | name: what it is``."""
    paragraph = _KEYS.search(source)
    if paragraph is None:
        raise ValueError("a script must name its keys in its header: -- KEYS  name: what it is | ...")
    rows = re.split(r"\||\n--", paragraph[1])
    return tuple(row.split(":")[0].strip() for row in rows if ":" in row)


def commands_of(source: str) -> tuple[str, ...]:
    """The Redis commands that are the first argument of a call: of `redis.call`, or of a function that passes it on."""
    return tuple(sorted(set(_COMMAND.findall(_COMMENT.sub("", source)))))


def all_names() -> list[str]:
    """Every verb there is, for tests and documentation."""
    return sorted(path.name.removesuffix(".lua") for path in _LUA.iterdir() if path.name.endswith(".lua"))
