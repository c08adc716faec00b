"""The reference pages say what the code says, and leave nothing out."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import redis_message_queue
import redis_message_queue.asyncio
from docs import generate
from docs.reference import events, markdown, options
from redis_message_queue import EventOperation, RedisGateway, RedisMessageQueue, embedded
from tests.docs.pages import ROOT

REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in sorted(generate.REFERENCE.glob("*.md")))


def test_the_pages_are_what_the_code_makes_of_them() -> None:
    """If this fails: python -m docs.generate."""
    assert list(generate.outdated()) == []


def test_no_page_lies_there_that_nothing_makes() -> None:
    """A page written by hand would go out of date unseen."""
    assert {page.name for page in generate.REFERENCE.glob("*.md")} == generate.PAGES.keys()


def test_check_tells_which_page_is_out_of_date_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit status is 1 then, and 0 once the pages have been written."""
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/reference/keys.md is out of date" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_the_generator_is_a_command() -> None:
    """As the pages' first line names it."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "docs.generate", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("module", [redis_message_queue, redis_message_queue.asyncio, embedded])
def test_every_public_name_is_in_the_reference(module: object) -> None:
    """As a word in code or as a heading."""
    told = set(re.findall(r"`(\w+)|^#+ (\w+)", REFERENCE, re.MULTILINE))
    words = {word for pair in told for word in pair}
    assert [name for name in module.__all__ if name not in words] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["RedisMessageQueue", "RedisGateway"])
def test_what_holds_for_threads_holds_for_asyncio(name: str) -> None:
    """One page of options serves both, because both take the same."""
    here, there = getattr(redis_message_queue, name), getattr(redis_message_queue.asyncio, name)
    assert inspect.signature(here).parameters == inspect.signature(there).parameters


def test_every_option_has_a_sentence() -> None:
    """Of the queue and of the gateway."""
    for owner in (RedisMessageQueue, RedisGateway):
        for name in options.parameters_of(owner):
            assert len(options.meaning(owner, name)) > 20, name


def test_every_operation_has_a_sentence() -> None:
    """At least one, and for each outcome that it can have."""
    assert events.TELLINGS.keys() == set(EventOperation)
    assert all(len(telling.when) > 15 for tellings in events.TELLINGS.values() for telling in tellings)


def test_an_option_that_nobody_has_explained_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than a page that is silent about it."""
    groups = dict(options.QUEUE_GROUPS)
    groups.popitem()
    monkeypatch.setattr(options, "QUEUE_GROUPS", groups)
    with pytest.raises(markdown.OutOfStep, match="on_event"):
        options.options_page()


def test_a_contradiction_that_is_none_any_more_stops_the_generator() -> None:
    """Rather than a page that goes on forbidding it."""
    with pytest.raises(markdown.OutOfStep, match="no contradiction"):
        options.refusal_of(RedisMessageQueue, {"max_pending_length": 5})
