"""The citation, the licence and the package say the same."""

import tomllib

import yaml

from redis_message_queue.version import __version__
from tests.docs.pages import ROOT


def test_citation_licence_and_package_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    (author,) = package["authors"]
    assert cited["version"] == __version__
    assert cited["license"] == package["license"] == "MIT"
    assert cited["authors"] == [author]
    assert licence.startswith("MIT License")
    assert f"The {author['name']}" in licence
