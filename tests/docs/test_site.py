"""The documentation site is built without warnings, is complete, and loads nothing from elsewhere."""

import html
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs import pictures
from docs.diagrams import DIAGRAMS
from docs.site_hooks import ELSEWHERE
from tests.docs.pages import DOCS, IGNORED, ROOT, name_of, pages

PARTS = ["Tutorial", "How to", "Reference", "Explanation", "Inside"]
# Pages for those who change the library; the decisions are, too.
INSIDE = {"reference/contract.md", "explanation/simulator.md", "explanation/fuzzing.md"}
# What people type, and the page that answers it.
SEARCHES = {
    "priority": "how-to/recipes/priorities.html",
    "backoff": "how-to/delay-and-retry.html",
    "worker not picking up messages": "how-to/troubleshoot.html",
    "decorator": "how-to/recipes/tasks.html",
    "partitions": "how-to/spread-over-nodes.html",
    "schedule": "how-to/schedule.html",
    "dataclass": "how-to/typed-messages.html",
    "dashboard": "how-to/dashboard.html",
}
# A tag that makes a browser fetch something, with an address of another machine.
_FOREIGN = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


# The same site with pages that have nothing around their text but the navigation, which takes half of the time.
PLAIN = """
INHERIT: {root}/mkdocs.yml
docs_dir: {root}/docs
hooks: ["{root}/docs/site_hooks.py"]
theme: {{ name: null, custom_dir: theme }}
plugins: []
"""
PLAIN_PAGE = """
{% for part in nav %}<a class="md-tabs__link">{{ part.title }}</a>{% endfor %}
{% if page in nav.pages %}<a class="md-nav__link--active">{{ page.title }}</a>{% endif %}
{{ page.content }}
"""


def test_the_text_of_the_site_is_complete_and_stands_alone(tmp_path: Path) -> None:
    """One test, because the build takes seconds and each process of a test run would repeat it."""
    (tmp_path / "theme").mkdir()
    (tmp_path / "theme" / "main.html").write_text(PLAIN_PAGE, encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(PLAIN.format(root=ROOT), encoding="utf-8")
    site = build_site(tmp_path / "site", tmp_path / "mkdocs.yml")
    check_that_every_page_is_in_the_site(site)
    check_that_the_navigation_has_five_parts_and_every_page(site)
    check_that_nothing_is_loaded_from_elsewhere(site)
    check_that_a_link_which_leaves_the_site_is_plain_text(site)


@pytest.mark.in_full
def test_the_site_is_complete_and_stands_alone(tmp_path: Path) -> None:
    """With its theme and its search."""
    site = build_site(tmp_path / "site", ROOT / "mkdocs.yml")
    check_that_every_page_is_in_the_site(site)
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    check_that_the_search_has_every_page_for_users(entries)
    for words, page in SEARCHES.items():
        assert first_page(entries, words) == page, words
    check_that_the_navigation_has_five_parts_and_every_page(site)
    check_that_nothing_is_loaded_from_elsewhere(site)
    check_that_a_link_which_leaves_the_site_is_plain_text(site)


def build_site(place: Path, config: Path) -> Path:
    """As `make docs` does; a warning is an error."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    build += ["--config-file", str(config), "--site-dir", str(place)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return place


def expected_pages() -> set[str]:
    return {page.relative_to(DOCS).as_posix() for page in [*pages(), IGNORED] if page.is_relative_to(DOCS)}


def check_that_every_page_is_in_the_site(site: Path) -> None:
    """Also those outside of docs/."""
    built = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert expected_pages() | set(ELSEWHERE.values()) <= built


def check_that_the_search_has_every_page_for_users(entries: list[dict[str, Any]]) -> None:
    """And no page for those who change the library."""
    found = {entry["location"].partition("#")[0] for entry in entries}
    inside = {page for page in expected_pages() if page.startswith("decisions/")} | INSIDE
    assert {page.replace(".md", ".html") for page in expected_pages() - inside} <= found
    assert not {page.replace(".md", ".html") for page in inside} & found


def first_page(entries: list[dict[str, Any]], query: str) -> str:
    """The page that the site shows first, by the rules of its search (lunr with b = 0, and a boost for pages)."""
    words = query.split()
    fields = {"title": 1000.0, "text": 1.0}
    counts = [{field: Counter(tokens(entry[field])) for field in fields} for entry in entries]
    spread = Counter(token for count in counts for token in {*count["title"], *count["text"]})
    matching = {word: [token for token in spread if token.startswith(word)] for word in words}
    wanted = [word for word in words if matching[word]]
    best: dict[str, float] = {}
    for entry, count in zip(entries, counts, strict=True):
        found = {word for word in wanted if any(count[field][token] for field in fields for token in matching[word])}
        score = sum(
            math.log(1 + abs((2 * len(entries) - spread[token] + 0.5) / (spread[token] + 0.5)))
            * (2.2 * count[field][token] / (1.2 + count[field][token]))
            * weight
            for field, weight in fields.items()
            for token in {token for word in words for token in matching[word]}
        )
        page, _, anchor = entry["location"].partition("#")
        share = (not anchor) + len(found) / max(1, len(wanted))
        best[page] = max(best.get(page, 0), score * entry.get("boost", 1) * (1 + share**2))
    return max(best, key=best.__getitem__)


def tokens(text: str) -> list[str]:
    """Words as the search separates them."""
    return re.split(r"[\s\-]+", html.unescape(re.sub(r"<[^>]*>", " ", text)).lower())


def check_that_the_navigation_has_five_parts_and_every_page(site: Path) -> None:
    """A page that the navigation does not list would be hard to find."""
    home = (site / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'class="md-tabs__link"[^>]*>\s*([^<]+?)\s*<', home)
    assert [html.unescape(tab) for tab in tabs if tab != "Home"] == PARTS
    for page in pages():
        if page.is_relative_to(DOCS):
            built = (site / page.relative_to(DOCS)).with_suffix(".html").read_text(encoding="utf-8")
            assert "md-nav__link--active" in built, f"{name_of(page)} is not in the navigation"


def check_that_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """No fonts, scripts or pictures of a CDN: the site works without a network."""
    for path in site.rglob("*.html"):
        assert _FOREIGN.findall(path.read_text(encoding="utf-8")) == [], path


def check_that_a_link_which_leaves_the_site_is_plain_text(site: Path) -> None:
    """Otherwise it would be broken there, as a link to a source file would be."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="how-to/recipes/tasks.html"' in home
    assert 'href="examples/' not in home


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_shown_in_a_page_and_no_text_leaves_it(name: str) -> None:
    """By an estimate of the width of a text, which no browser exceeds by far."""
    assert any(f"diagrams/{name})" in page.read_text(encoding="utf-8") for page in pages())
    drawing = ElementTree.fromstring((DOCS / "explanation" / "diagrams" / name).read_text(encoding="utf-8"))
    width = float(drawing.attrib["viewBox"].split()[2])
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        x, long = float(text.attrib["x"]), 6.2 * len(text.text or "")
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]]
        assert x - share * long >= 0, text.text
        assert x + (1 - share) * long <= width, text.text


def test_the_picture_of_a_terminal_can_be_made_again() -> None:
    """From what the program draws, without a font of another machine. `python -m docs.pictures` writes it."""
    drawn = pictures.draw("queue   pending\r\norders  \x1b[1m3\x1b[0m\r\n")
    for svg in (drawn, (pictures.PICTURES / "stats-watch.svg").read_text(encoding="utf-8")):
        assert "orders" in svg
        assert "@font-face" not in svg
        ElementTree.fromstring(svg)


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.webp")), ids=lambda path: path.name)
def test_a_photograph_is_small_and_on_a_page(picture: Path) -> None:
    """`python -m docs.pictures` takes them."""
    content = picture.read_bytes()
    assert (content[:4], content[8:12]) == (b"RIFF", b"WEBP")
    assert len(content) < 100_000
    assert any(f"]({picture.name})" in page.read_text(encoding="utf-8") for page in picture.parent.glob("*.md"))
