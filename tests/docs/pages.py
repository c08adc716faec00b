"""Reads the documentation for tests: code blocks, what their prints promise, links and headings."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# It is in the site and in the source distribution, whether `make docs` has written it here or not.
IGNORED = DOCS / "reference" / "contract.md"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- *not run: *(?P<reason>(?:(?!-->).)*?) *-->\s*\Z", re.DOTALL)
_FILE = re.compile(r"# (?P<name>[\w/]+\.py)\n")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A block of Python in a page."""

    page: Path
    line: int  # where its code starts
    code: str
    indented: bool
    not_run: str | None  # the reason, if the page gives one

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file name under which the reader saves it, if its first line is one."""
        found = _FILE.match(self.code)
        return found["name"] if found else None

    @property
    def never_ends(self) -> bool:
        """Whether it is a consumer that runs until a signal comes."""
        is_consumer = "GracefulInterruptHandler()" in self.code or "ntil SIGTERM" in self.code
        return is_consumer and self.file is None

    @cached_property
    def promises(self) -> dict[int, str]:
        """The line of each print in the page, and the comment that says what it prints."""
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(self.code).readline)
            if token.type == tokenize.COMMENT
        }
        return {self.line - 1 + line: comments[line] for line in _print_lines(self.code) if line in comments}


def _print_lines(code: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno


def keeps(promise: str, said: list[str]) -> bool:
    """Whether the output is what the comment says, up to a colon and an explanation; … stands for anything.

    A print in a loop promises all its lines, with a comma between them.
    """
    text = ", ".join(said)
    heads = [promise, *(promise[: colon.start()] for colon in re.finditer(": ", promise))]
    return any(re.fullmatch(".*".join(map(re.escape, head.split("…"))), text) for head in heads)


def pages() -> list[Path]:
    """The pages that git has."""
    return [README, *sorted(path for path in DOCS.rglob("*.md") if path != IGNORED)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path, language: str = "python") -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("code")) + 1,
            code=found["code"],
            indented=bool(found["indent"]),
            not_run=reason["reason"] if (reason := _NOT_RUN.search(text[: found.start()])) else None,
        )
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def programs_of(page: Path) -> list[list[Block]]:
    """The blocks of a page in the order in which they run; those that share variables are together.

    A consumer that never ends is a separate program, and so are the blocks after it.
    """
    programs: list[list[Block]] = [[]]
    for block in blocks_of(page):
        if block.not_run is not None or block.file is not None:
            continue
        if block.never_ends:
            programs += [[block], []]
        else:
            programs[-1].append(block)
    return [program for program in programs if program]


def links_of(page: Path) -> list[str]:
    """The links of a page into the repository; code is skipped."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return [one["target"] for one in _LINK.finditer(text) if "://" not in one["target"]]


def anchors_of(page: Path) -> set[str]:
    """The headings of a page, as anchors."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
