"""The reference pages are up to date and complete."""

import inspect
import pydoc
import re
import sys
from pathlib import Path

import pytest

import redis_message_queue
import redis_message_queue.asyncio
from docs import generate
from docs.reference import events, markdown, options
from redis_message_queue import EventOperation, RedisGateway, RedisMessageQueue, embedded
from redis_message_queue.options.declared import QueueArguments, descriptions
from tests import fork_server
from tests.docs.pages import ROOT, links_of, pages
from tests.tables import row

PAGES = [page for page in pages() if page.parent == generate.REFERENCE]
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_reference_page_but_the_index_is_generated() -> None:
    """A page written by hand would silently go out of date. The index is one list of them, which is complete."""
    made = {page.name for page in PAGES} - {"index.md"}
    assert made == generate.PAGES.keys() - {generate.IGNORED.name}
    assert generate.PAGES.keys() <= set(links_of(generate.REFERENCE / "index.md"))


def test_check_names_outdated_pages_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit status is 1 then, and 0 once the pages have been written."""
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {name: generate.PAGES[name] for name in ("keys.md", "errors.md")})
    assert generate.main(["--check"]) == 1
    assert "docs/reference/keys.md is out of date" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_the_pages_are_up_to_date() -> None:
    """If this fails, run the command that the first line of each page names: python -m docs.generate."""
    ended = fork_server.run([sys.executable, "-W", "error", "-m", "docs.generate", "--check"], cwd=ROOT)
    assert ended.stderr == ""
    assert ended.returncode == 0


@pytest.mark.parametrize("module", [redis_message_queue, redis_message_queue.asyncio, embedded])
def test_every_public_name_is_in_the_reference(module: object) -> None:
    """As code or as a heading."""
    found = re.findall(r"`(\w+)|^#+ (\w+)", REFERENCE, re.MULTILINE)
    words = {word for pair in found for word in pair}
    assert [name for name in module.__all__ if name not in words] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["RedisMessageQueue", "RedisGateway"])
def test_sync_and_async_take_the_same_options(name: str) -> None:
    """So one page of options serves both."""
    here, there = getattr(redis_message_queue, name), getattr(redis_message_queue.asyncio, name)
    both = [inspect.signature(one).parameters.values() for one in (here, there)]
    assert len({tuple((one.name, one.kind, one.default) for one in parameters) for parameters in both}) == 1


def test_every_option_has_a_sentence() -> None:
    """Of the queue and of the gateway."""
    for owner in (RedisMessageQueue, RedisGateway):
        for name in options.parameters_of(owner):
            assert len(options.meaning(owner, name)) > 20, name


def test_every_operation_has_a_sentence() -> None:
    """At least one, and for each outcome that it can have."""
    assert events.EVENT_ROWS.keys() == set(EventOperation)
    assert all(len(row.when) > 15 for rows in events.EVENT_ROWS.values() for row in rows)


def test_an_option_without_a_group_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the page would leave it out."""
    groups = dict(options.QUEUE_GROUPS)
    groups.popitem()
    monkeypatch.setattr(options, "QUEUE_GROUPS", groups)
    with pytest.raises(markdown.OutOfSync, match="on_event"):
        options.options_page()


def test_an_outdated_contradiction_stops_the_generator() -> None:
    """Otherwise the page would go on forbidding it."""
    with pytest.raises(markdown.OutOfSync, match="no contradiction"):
        options.refusal_of(RedisMessageQueue, {"max_pending_length": 5})


METHODS = [
    (owner, name)
    for owner in ("RedisMessageQueue", "ReceivedMessage")
    for name, member in inspect.getmembers(getattr(redis_message_queue, owner), inspect.isfunction)
    if not name.startswith("_")
]


def test_every_public_method_describes_its_parameters(subtests: pytest.Subtests) -> None:
    """Each parameter has a line under Args, in the order of the signature; `close` refers to `drain`."""
    for owner, name in METHODS:
        with row(subtests, method=f"{owner}.{name}"):
            method = getattr(getattr(redis_message_queue, owner), name)
            parameters = list(inspect.signature(method).parameters)[1:]
            _, _, section = (inspect.getdoc(method) or "").partition("\nArgs:\n")
            described = re.findall(r"^    (\w+): ", section.partition("\n\n")[0], re.MULTILINE)
            assert described == parameters or name == "close"


def test_help_describes_every_option_of_a_queue() -> None:
    """`help(RedisMessageQueue)` shows what each of them does."""
    shown = pydoc.plain(pydoc.render_doc(redis_message_queue.RedisMessageQueue))
    for name, says in descriptions(QueueArguments).items():
        assert f"{name}: {says.split()[0]}" in shown
