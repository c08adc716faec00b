"""Every page that shows `process_message()` says what an exception does there, and how to keep such messages."""

import re

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.topic("Documentation")

WORDS = (
    "If the block of `process_message()` raises, its message is removed; `enable_failed_queue=True` or a `RetryPolicy` "
    "keeps it."
)
PAGES = [ROOT / "README.md", *(ROOT / "docs" / "tutorial").glob("*.md"), *(ROOT / "docs" / "how-to").rglob("*.md")]


def test_every_page_with_a_block_for_one_message_says_what_an_exception_does() -> None:
    """In the same words everywhere."""
    code = {page: "".join(re.findall(r"^```\w.*?^```$", page.read_text(), re.M | re.S)) for page in PAGES}
    shown = [page for page, text in code.items() if re.search(r"process_message(_callback)?\(", text)]
    assert len(shown) > 10
    assert [str(page) for page in shown if WORDS not in " ".join(page.read_text().split())] == []


def test_the_how_to_tests_the_handler_of_the_readme() -> None:
    readme, how_to = ((ROOT / name).read_text() for name in ("README.md", "docs/how-to/test-your-handlers.md"))
    found = re.search(r"^def handle\(message\):\n(?: {4}.*\n)+", readme, re.M)
    assert found is not None and found.group() in how_to
