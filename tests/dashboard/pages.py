"""Reads a page as a browser would: its text, its elements, and what could run in it."""

import time
from collections.abc import Callable
from html.parser import HTMLParser

import httpx

MOST_SECONDS = 120.0
_VOID = {"meta", "link", "input", "img", "br", "hr", "base"}


class Page(HTMLParser):
    """A parsed page."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.inline: list[str] = []
        self._open: list[str] = []
        self.feed(response.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style") and data.strip():
            self.inline.append(data)
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def links(self) -> list[str]:
        return [one["href"] for one in self.all("a") if "href" in one]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def dangers(self) -> list[str]:
        """Return everything that could run code of somebody else, or load something from elsewhere."""
        found = list(self.inline)
        for tag, attributes in self.elements:
            found += [f"{tag} {name}" for name in attributes if name.startswith("on") or name == "style"]
            for name in ("src", "href", "action", "data-events"):
                target = attributes.get(name, "")
                if (target and not target.startswith(("/", "#", "?"))) or target.startswith("//"):
                    found.append(f"{tag} {name}={target}")
            if tag in ("iframe", "object", "embed", "base", "img", "style"):
                found.append(tag)
        scripts = [one.get("src", "").partition("?")[0].rpartition("/")[2] for one in self.all("script")]
        return found + [one for one in scripts if one != "dashboard.js"]


def comes(condition: Callable[[], bool]) -> bool:
    """Wait until a page shows something. The dashboard looks every two seconds, and each request of ours costs time."""
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
