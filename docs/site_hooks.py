"""Hooks of MkDocs: pages outside of docs/ become pages of the site, links follow, and new pages join the navigation."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.reference.contract import contract_page

ROOT = Path(__file__).resolve().parents[1]
# Where in the site a page of the repository goes that is not in docs/.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "explanation/benchmark.md",
    "src/redis_message_queue/lua/README.md": "explanation/scripts.md",
}
# The part of the site for those who change the library.
INSIDE = "Inside"
# Whoever searches has a task or a symptom rather than a name to look up.
BOOSTS = {"how-to/troubleshoot.md": 4, "how-to/": 2, "tutorial/": 2}
# The first matches code, where nothing is a link.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^ *```.*?^ *```[ ]*$|`[^`\n]+`)|(?P<image>!?)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


def on_config(config: Any) -> Any:
    """Add the pages that the navigation does not list to the end of their part."""
    listed = set(_paths(config["nav"]))
    parts = {"tutorial": "Tutorial", "how-to": "How to", "reference": "Reference", "decisions": INSIDE}
    for page in sorted(_pages()):
        if page not in listed:
            top, *rest = page.split("/")
            section = _section(config["nav"], parts.get(top, "Explanation"))
            if rest[:1] == ["recipes"]:
                section = _section(section, "Recipes")
            _section(section, "Decisions").append(page) if top == "decisions" else section.append(page)
    return config


def _pages() -> set[str]:
    docs = ROOT / "docs"
    return {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}


def _paths(nav: list[Any]) -> list[str]:
    """The pages in a navigation, however deep."""
    flat: list[str] = []
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            flat += _paths(value) if isinstance(value, list) else [value]
    return flat


def _section(nav: list[Any], title: str) -> list[Any]:
    return next(entry[title] for entry in nav if isinstance(entry, dict) and title in entry)


def on_files(files: Files, config: Any) -> Files:
    """Make a page of each text outside of docs/, and of the contract."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    if written := files.get_file_from_path("reference/contract.md"):
        files.remove(written)
    files.append(File.generated(config, "reference/contract.md", content=contract_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages of the site. A link to a file that is not in the site becomes its text."""
    page.meta["search"] = _in_search(page)
    at = page.file.src_uri
    source = next((source for source, uri in ELSEWHERE.items() if uri == at), f"docs/{at}")
    return _CODE_OR_LINK.sub(lambda found: _rewritten(found, source, at), markdown)


def _in_search(page: Any) -> dict[str, object]:
    """Leave the pages for those who change the library out of the search, and let how-to pages come first."""
    if page.ancestors and page.ancestors[-1].title == INSIDE:
        return {"exclude": True}
    return {"boost": next((boost for path, boost in BOOSTS.items() if page.file.src_uri.startswith(path)), 1)}


def _rewritten(found: re.Match[str], source: str, at: str) -> str:
    target = found["target"]
    if found["code"] is not None or "://" in target or target.startswith("#"):
        return found[0]
    path, hash_sign, anchor = target.partition("#")
    aim = _in_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
    if aim is None:
        return found["text"]
    link = posixpath.relpath(aim, posixpath.dirname(at) or ".")
    return f"{found['image']}[{found['text']}]({link}{hash_sign}{anchor})"


def _in_site(path: str) -> str | None:
    """The page or picture of the site for a path of the repository."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if not path.startswith("docs/"):
        return None
    name = path.removeprefix("docs/")
    return f"{name}/index.md" if (ROOT / path).is_dir() else name
