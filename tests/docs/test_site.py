"""The documentation site is built without warnings, is complete, and loads nothing from elsewhere."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import pictures
from docs.diagrams import DIAGRAMS
from docs.site_hooks import ELSEWHERE
from tests.docs.pages import DOCS, IGNORED, ROOT, name_of, pages

PARTS = ["Tutorial", "How to", "Reference", "Explanation"]
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
    check_that_the_navigation_has_four_parts_and_every_page(site)
    check_that_nothing_is_loaded_from_elsewhere(site)
    check_that_a_link_which_leaves_the_site_is_plain_text(site)


@pytest.mark.in_full
def test_the_site_is_complete_and_stands_alone(tmp_path: Path) -> None:
    """With its theme and its search."""
    site = build_site(tmp_path / "site", ROOT / "mkdocs.yml")
    check_that_every_page_is_in_the_site(site)
    check_that_every_page_is_in_the_search(site)
    check_that_the_navigation_has_four_parts_and_every_page(site)
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


def check_that_every_page_is_in_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {page.replace(".md", ".html") for page in expected_pages()} <= found


def check_that_the_navigation_has_four_parts_and_every_page(site: Path) -> None:
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
