"""Lints the Lua scripts: undefined, unused and shadowed names, and what shared steps need, make and leave alone.

Run it with ``python -m tests.lua.lint``.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from luaparser import ast, astnodes

from redis_message_queue.stored import scripts
from redis_message_queue.stored.bounds import LUA_BOUNDS

ROOT = Path(scripts.__file__).parents[1]
GLOBALS = {
    *("redis", "cjson", "cmsgpack", "struct", "string", "table", "math"),
    *("error", "ipairs", "pairs", "pcall", "select", "tonumber", "tostring", "type", "unpack"),
    *LUA_BOUNDS,  # from the loader
}
LINE_LENGTH = 120
_INCLUDE = re.compile(r"( *)--@include (\w+)")

CHECKS = {
    "state",
    "fast_path_state",
}  # steps that are included for what they refuse, even if nothing that they make is used


@dataclass
class Name:
    """A local variable, or a name that a file gets from elsewhere."""

    name: str
    line: int
    origin: str  # "here", "header", "need", or the shared step that makes it
    is_private: bool = False
    is_read: bool = False


@dataclass
class Page:
    """One file: its findings, as (line, what is wrong), and the names that it declares at its top level."""

    path: Path
    text: str
    findings: list[tuple[int, str]] = field(default_factory=list)
    top: dict[str, Name] = field(default_factory=dict)

    def includes(self) -> list[str]:
        """The shared steps that it asks for, in their order."""
        return [found[2] for line in self.text.split("\n") if (found := _INCLUDE.fullmatch(line))]

    def declared(self, paragraph: str) -> list[str]:
        """The names of the lines ``-- Needs  ...`` or ``-- Makes  ...``."""
        rows = re.findall(rf"^-- {paragraph} {{2}}(.*)$", self.text, re.MULTILINE)
        return [name for row in rows for name in row.split(", ")]


class Reader:
    """Reads a file as Lua does, scope by scope."""

    UNUSED: ClassVar = {"here": "is never used", "header": "of the header is never used", "need": "is not needed"}

    def __init__(self, page: Page, steps: dict[str, Page]) -> None:
        self.page = page
        self.steps = steps
        self.scopes: list[dict[str, Name]] = [{}]
        self.ended: list[Name] = []
        self.line = 1
        # What was included where: the include itself is read as a call of this name.
        self.includes: dict[str, str] = {}

    def read(self, given: list[str], origin: str) -> None:
        self.is_step = origin == "need"
        for name in given:
            self.scopes[0][name] = Name(name, 1, origin)
        lines = self.page.text.split("\n")
        for place, line in enumerate(lines):
            if len(line) > LINE_LENGTH:
                self.complain(f"the line is longer than {LINE_LENGTH} characters", place + 1)
            if found := _INCLUDE.fullmatch(line):
                if found[2] in self.steps:
                    self.includes[f"INCLUDE_{place + 1}_{found[2]}"] = found[2]
                    lines[place] = f"{found[1]}INCLUDE_{place + 1}_{found[2]}()"
                else:
                    self.complain(f"there is no lib/{found[2]}.lua", place + 1)
        self.scopes.append(self.page.top)
        self.block(ast.parse("\n".join(lines)).body)
        for name in self.page.declared("Makes"):
            if name in self.page.top and self.page.top[name].origin == "here":
                self.page.top[name].is_read = True
            else:
                self.complain(f"it does not make {name!r}", 1)
        self.leave()
        self.leave()
        for one in self.ended:
            if not one.is_read and one.origin in self.UNUSED and not one.name.startswith("_"):
                self.complain(f"{one.name!r} {self.UNUSED[one.origin]}", one.line)
        for step in set(self.includes.values()):
            if step not in CHECKS and not any(one.is_read for one in self.ended if one.origin == step):
                self.complain(f"nothing of lib/{step}.lua is used", 1)

    def complain(self, what: str, line: int | None = None) -> None:
        self.page.findings.append((line or self.line, what))

    # -- scopes

    def leave(self) -> None:
        self.ended += self.scopes.pop().values()

    def find(self, name: str) -> Name | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def declare(self, name: str, origin: str = "here", *, is_private: bool = False, may_shadow: bool = False) -> None:
        known = None if name == "_" else self.find(name)
        if known is not None and not may_shadow:
            self.complain(f"{name!r} shadows the {name!r} of line {known.line}")
        if name in self.scopes[-1]:
            self.ended.append(self.scopes[-1][name])
        self.scopes[-1][name] = Name(name, self.line, origin, is_private)

    def use(self, node: Any, is_written: bool = False) -> None:
        known = self.find(node.id)
        if known is None:
            if node.id not in GLOBALS:
                self.complain(f"{node.id!r} is not defined")
            elif is_written:
                self.complain(f"{node.id!r} is a global")
            return
        if known.is_private:
            self.complain(f"{node.id!r} is private to lib/{known.origin}.lua")
        if is_written and known.origin != "here":
            self.complain(f"{node.id!r} is not this file's to change")
        known.is_read = known.is_read or not is_written

    # -- statements and expressions

    def block(self, node: Any) -> None:
        for statement in node.body:
            self.visit(statement)

    def scoped(self, node: Any) -> None:
        self.scopes.append({})
        self.block(node)
        self.leave()

    def include(self, step: str) -> None:
        """Declare what a step makes, behind what its own includes make. Each stands once in a block."""
        page = self.steps[step]
        if self.find(page.path.name) is not None:
            return
        self.scopes[-1][page.path.name] = Name(page.path.name, self.line, "include")
        for nested in page.includes():
            self.include(nested)
        # What the steps in a step need is for the script to have.
        for name in () if self.is_step else page.declared("Needs"):
            known = self.find(name)
            if known is None:
                self.complain(f"lib/{step}.lua needs {name!r}")
            else:
                known.is_read = True
        made = page.declared("Makes")
        for name, one in page.top.items():
            if one.origin == "here":
                self.declare(name, step, is_private=name not in made)

    def visit(self, node: Any) -> None:
        if isinstance(node, astnodes.Node) and node.first_token is not None:  # some names have no place of their own
            self.line = node.first_token.line
        match node:
            case astnodes.Call(func=astnodes.Name(id=name)) if name in self.includes:
                step = self.includes[name]
                if self.find(self.steps[step].path.name) is not None:
                    self.complain(f"lib/{step}.lua is here already")
                self.include(step)
            case astnodes.LocalAssign():
                for value in node.values:
                    self.visit(value)
                for target in node.targets:
                    self.declare(target.id)
            case astnodes.Assign():
                for value in node.values:
                    self.visit(value)
                for target in node.targets:
                    if isinstance(target, astnodes.Name):
                        self.use(target, is_written=True)
                    else:
                        self.visit(target)
            case astnodes.LocalFunction():
                self.declare(node.name.id)
                self.function(node)
            case astnodes.AnonymousFunction():
                self.function(node)
            case astnodes.Forin():
                for value in node.iter:
                    self.visit(value)
                self.loop(node, node.targets)
            case astnodes.Fornum():
                for value in (node.start, node.stop, node.step):
                    self.visit(value)
                self.loop(node, [node.target])
            case astnodes.If() | astnodes.ElseIf():
                self.visit(node.test)
                self.scoped(node.body)
                if isinstance(node.orelse, astnodes.Block):
                    self.scoped(node.orelse)
                elif node.orelse is not None:
                    self.visit(node.orelse)
            case astnodes.While():
                self.visit(node.test)
                self.scoped(node.body)
            case astnodes.Do():
                self.scoped(node.body)
            case astnodes.Name():
                self.use(node)
            case astnodes.Index():
                self.visit(node.value)
                if node.notation is astnodes.IndexNotation.SQUARE:
                    self.visit(node.idx)
            case astnodes.Field():
                if node.between_brackets:
                    self.visit(node.key)
                self.visit(node.value)
            case astnodes.Node():
                for name, value in vars(node).items():
                    if not name.startswith("_"):
                        for one in value if isinstance(value, list) else [value]:
                            self.visit(one)

    def function(self, node: Any) -> None:
        self.scopes.append({})
        for one in node.args:
            if isinstance(one, astnodes.Name):
                self.declare(one.id, may_shadow=True)
        self.block(node.body)
        self.leave()

    def loop(self, node: Any, targets: list[Any]) -> None:
        self.scopes.append({})
        for target in targets:
            self.declare(target.id)
        self.block(node.body)
        self.leave()


def in_order(steps: dict[str, Page]) -> list[Page]:
    """Each step behind those that it includes."""
    ordered: dict[str, Page] = {}

    def add(name: str, path: tuple[str, ...] = ()) -> None:
        if name in path:
            raise ValueError(f"{' includes '.join((*path, name))}")
        for nested in steps[name].includes():
            if nested in steps:  # the reader says so of others
                add(nested, (*path, name))
        ordered[name] = steps[name]

    for name in steps:
        add(name)
    return list(ordered.values())


def lint() -> Iterator[Page]:
    """Each file, with what is wrong in it."""
    steps = {path.stem: Page(path, path.read_text("utf-8")) for path in sorted((ROOT / "lua" / "lib").glob("*.lua"))}
    for page in in_order(steps):
        Reader(page, steps).read(page.declared("Needs"), "need")
        yield page
    for path in (*sorted((ROOT / "lua").glob("*.lua")), ROOT / "testing" / "fast_forward.lua"):
        page = Page(path, path.read_text("utf-8"))
        Reader(page, steps).read(scripts.bound_names(page.text), "header")
        yield page


def main() -> int:
    """Print what is wrong, and say with the exit code whether anything is."""
    found = [
        f"{page.path.relative_to(Path.cwd())}:{line}: {what}" for page in lint() for line, what in sorted(page.findings)
    ]
    print("\n".join(found) or "Lua: all files passed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
