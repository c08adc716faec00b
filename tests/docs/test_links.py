"""The links, headings and make targets of the pages exist."""

import re

import pytest

from tests.docs.pages import IGNORED, README, ROOT, anchors_of, blocks_of, links_of, name_of, pages
from tests.tables import row

LINKING = [
    *pages(),
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")),
    ROOT / "src" / "redis_message_queue" / "lua" / "README.md",
    *sorted((ROOT / "examples").rglob("README.md")),
]


def test_every_link_has_a_target(subtests: pytest.Subtests) -> None:
    """A relative link to a file or directory of the repository, and to a heading if it names one."""
    for page in LINKING:
        with row(subtests, page=name_of(page)):
            for link in links_of(page):
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                assert target.exists() or target == IGNORED, f"{name_of(page)} links to {link}, which does not exist"
                assert target.is_relative_to(ROOT), f"{name_of(page)} links out of the repository: {link}"
                if anchor:
                    assert anchor in anchors_of(target), f"{name_of(page)} links to {link}, which is no heading"


def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_two_commands_of_the_readme_are_make_targets() -> None:
    """The block at the top has two commands, and both are targets."""
    commands = [line.split("#")[0].split() for line in blocks_of(README, "bash")[0].code.splitlines()]
    assert [words[0] for words in commands] == ["make", "make"]
    assert {words[1] for words in commands} == {"demo", "test"}
    assert {words[1] for words in commands} <= targets()


def test_every_make_command_in_a_page_is_a_target(subtests: pytest.Subtests) -> None:
    """In a block or in the text."""
    for page in LINKING:
        with row(subtests, page=name_of(page)):
            named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
            assert set(named) <= targets()


def test_every_page_is_linked() -> None:
    """From the README, directly or through other pages."""
    found, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        if page in found or page == IGNORED:
            continue
        found.add(page)
        for link in links_of(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            waiting += sorted(target.glob("*.md")) if target.is_dir() else [target] if target.suffix == ".md" else []
    assert [name_of(page) for page in pages() if page not in found] == []
