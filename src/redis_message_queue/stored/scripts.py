"""Puts the Lua scripts together: their shared steps, the bounds, and a local variable for each key and argument."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from redis_message_queue.stored.bounds import LUA_BOUNDS

_LUA = files("redis_message_queue") / "lua"
_INCLUDE = re.compile(r"^ *--@include (\w+)$\n?", re.MULTILINE)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--[^\n]*")
_COMMAND = re.compile(r"\(\s*'([A-Z]+)'")
_LINE = re.compile(r"(?:.*\(\n)?.*")  # with the next one, if that has the first argument of its call
_PASSED_ON = re.compile(r"(?<!redis\.call)(?<!redis\.pcall)\('([A-Z]+)'")
_READS_STATE = re.compile(r"--@include (state|fast_path_state)$", re.MULTILINE)
_HEADER = re.compile(r"\A(?:-- .*\n)+")
_PARAGRAPH = {
    table: re.compile(rf"^-- {table} {{2}}(.*?)^-- (?:ARGV|Returns)", re.M | re.S) for table in ("KEYS", "ARGV")
}
_UNPACKED = 4000
_STANDS_FOR = {"take": "claim", "ack_one": "settle", "ack_and_take": "claim"}
# Which field of `meta` a script reads the version in: see lua/lib/state.lua. By whether the client asks for a journal,
# and for weights.
_VERSION_FIELDS = {
    (False, False): "version",
    (True, False): "version_journal",
    (False, True): "version_weights",
    (True, True): "version_journal_weights",
}
_NAME = re.compile(r"(\w+)(?: \((number|flag)\))?(\.\.\.)?(?::|$)")


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source as the server gets it, its digest, and the names of its keys in their order."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]
    commands: tuple[str, ...]  # what it may call

    @property
    def verb(self) -> str:
        """The name in errors and logs: that of the script whose fast path this is, or its own."""
        return _STANDS_FOR.get(self.name, self.name)

    def commands_in(self, line: int) -> tuple[str, ...]:
        """The commands that the script may call in one line of its source, counted from 1 as Redis does.

        A call may name its command in the line after. A line that passes on the command it was given may call any that
        such a function is given.
        """
        found = _LINE.match("\n".join(self.source.splitlines()[line - 1 :]))
        return commands_of(found[0] if found else "") or tuple(sorted(set(_PASSED_ON.findall(self.source))))


class Named(NamedTuple):
    """One name in a header: ``name``, ``name (number)``, ``name (flag)``, or ``names...`` for all that follow."""

    name: str
    kind: str | None
    repeats: bool


def version_field(*, journal: bool = False, weights: bool = False) -> str:
    """The field of ``meta`` in which a client with these wishes looks for the version of the stored state."""
    return _VERSION_FIELDS[journal, weights]


@cache
def script(name: str, version_field: str = "version") -> Script:
    """The script ``lua/<name>.lua``, read once for each kind of client."""
    source = assembled((_LUA / f"{name}.lua").read_text("utf-8"), version_field)
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, digest, key_names(source), commands_of(source))


def assembled(text: str, version_field: str = "version") -> str:
    """Return the text for the server: below the header a line with keys, arguments and bounds, and the shared steps."""
    header = _HEADER.match(text)
    if header is None or not _PARAGRAPH["KEYS"].search(header[0]):
        raise ValueError("a script must name its keys in its header: -- KEYS  name: what it is | ...")
    bindings = " ".join(one for table in _PARAGRAPH for one in _bindings(table, _names(header[0], table)))
    if _READS_STATE.search(text):
        bindings += f" local version_field = '{version_field}'"
    body = "".join(_with_steps(text[header.end() :]))
    words = set(_WORD.findall(_COMMENT.sub("", body)))
    bindings += "".join(f" local {name} = {value}" for name, value in LUA_BOUNDS.items() if name in words)
    return f"{header[0]}{bindings}\n{body}"


def _with_steps(body: str) -> Iterator[str]:
    """The text of a script, with each shared step where it is first asked for, in a block or in one around it."""
    blocks: list[tuple[int, set[str]]] = [(0, set())]  # those that are open: how far they are indented, and their steps
    for line in body.splitlines(keepends=True):
        indented = len(line) - len(line.lstrip(" "))
        while line.strip() and indented < blocks[-1][0]:
            blocks.pop()
        if (found := _INCLUDE.fullmatch(line)) is None:
            yield line
            continue
        if indented > blocks[-1][0]:
            blocks.append((indented, set()))
        yield from _step(found[1], [steps for _, steps in blocks])


def _step(name: str, known: list[set[str]]) -> Iterator[str]:
    """The text of a shared step behind those of the steps that it includes, unless they are ``known``."""
    if any(name in steps for steps in known):
        return
    known[-1].add(name)
    text = step_text(name)
    for found in _INCLUDE.finditer(text):
        yield from _step(found[1], known)
    yield _INCLUDE.sub("", text)


def step_text(name: str) -> str:
    """The shared step ``lua/lib/<name>.lua`` as it is written."""
    return (_LUA / "lib" / f"{name}.lua").read_text("utf-8")


def _names(source: str, table: str) -> list[Named]:
    """The names in a paragraph of the header, ``name: what it is | name: what it is``, up to one that repeats."""
    paragraph = _PARAGRAPH[table].search(source)
    names: list[Named] = []
    for row in re.split(r"\||\n--", paragraph[1]) if paragraph else ():
        if (found := _NAME.match(row.strip())) and not (names and names[-1].repeats):
            names.append(Named(found[1], found[2], found[3] is not None))
    return names


def _bindings(table: str, names: list[Named]) -> list[str]:
    once = [one for one in names if not one.repeats]
    lines = [f"local {', '.join(one.name for one in once)} = unpack({table}, 1, {len(once)})"] if once else []
    # Quicker than a call of `tonumber`.
    lines += [f"{one.name} = {one.name} + 0" for one in once if one.kind == "number"]
    lines += [f"{one.name} = {one.name} == '1'" for one in once if one.kind == "flag"]
    for one in names[len(once) :]:
        # `unpack` is twice as fast as a loop, and can carry no more than 8,000 values.
        first, last = len(once), len(once) + _UNPACKED
        lines.append(f"local {one.name} = {{unpack({table}, {first + 1}, math.min(#{table}, {last}))}}")
        lines.append(f"for at = {last + 1}, #{table} do {one.name}[at - {first}] = {table}[at] end")
    return lines


def key_names(source: str) -> tuple[str, ...]:
    """The names of the keys, in their order."""
    return tuple(one.name for one in _names(source, "KEYS"))


def argument_names(source: str) -> tuple[str, ...]:
    """The names of the arguments that stand once, in their order."""
    return tuple(one.name for one in _names(source, "ARGV") if not one.repeats)


def bound_names(source: str) -> list[str]:
    """The local variables that a script gets from its header."""
    names = [one.name for table in _PARAGRAPH for one in _names(source, table)]
    return [*names, "version_field"] if _READS_STATE.search(source) else names


def constant(step: str, name: str) -> int:
    """A number that a shared step declares, for Python code that must use the same."""
    found = re.search(rf"^local {name} = (\d+)", step_text(step), re.MULTILINE)
    if found is None:
        raise KeyError(f"{step} {name}")
    return int(found[1])


def commands_of(source: str) -> tuple[str, ...]:
    """The Redis commands that are the first argument of a call: of `redis.call`, or of a function that passes it on."""
    return tuple(sorted(set(_COMMAND.findall(_COMMENT.sub("", source)))))


def all_scripts() -> list[Script]:
    """Every script, as each kind of client sends it."""
    every = (script(name, field) for name in all_names() for field in _VERSION_FIELDS.values())
    return list({one.sha: one for one in every}.values())


def all_names() -> list[str]:
    """The names of all scripts, for tests and documentation."""
    return sorted(path.name.removesuffix(".lua") for path in _LUA.iterdir() if path.name.endswith(".lua"))
