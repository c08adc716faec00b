"""The contract is what the markers of the tests say."""

import difflib
import itertools
from pathlib import Path

import pytest

from docs.reference import contract
from docs.reference.markdown import OutOfSync

Promises = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def promises() -> Promises:
    """Not read at import: each process of a test run imports this module."""
    return contract.promises()


@pytest.fixture
def statements(promises: Promises) -> list[str]:
    return [statement for rows in promises.values() for statement in rows]


def test_every_statement_is_a_sentence(statements: list[str]) -> None:
    assert [one for one in statements if not one.endswith(".") or not 16 <= len(one) < 160] == []


def test_no_two_statements_are_almost_the_same(statements: list[str]) -> None:
    """A statement that several tests check is repeated word for word; a slip would make a second one of it."""
    assert almost_the_same(statements) == []


def test_a_slip_in_a_statement_is_found() -> None:
    one, slip = "A message that fails is delivered again.", "A message that failed is delivered again."
    assert almost_the_same([one, "An expired lease is reclaimed by any consumer.", slip]) == [(slip, one)]


def almost_the_same(statements: list[str]) -> list[tuple[str, str]]:
    """Only pairs that share a third of their words are compared letter by letter, which takes long."""
    words = [set(one.split()) for one in statements]
    return [
        (statements[one], statements[other])
        for one, other in itertools.combinations(range(len(statements))[::-1], 2)
        if 3 * len(words[one] & words[other]) >= max(len(words[one]), len(words[other]))
        and difflib.get_close_matches(statements[one], [statements[other]], 1, 0.9)
    ]


def test_every_topic_has_statements(promises: Promises) -> None:
    assert list(promises) == list(contract.TOPICS)


def test_no_test_makes_a_promise_twice(promises: Promises) -> None:
    for rows in promises.values():
        for statement, tests in rows.items():
            assert len(tests) == len(set(tests)), statement


def test_every_marker_is_read(promises: Promises) -> None:
    """Also one that stands where the page does not look for it: in a class, or with a text that is put together."""
    ours = Path(__file__)
    sources = (path.read_text(encoding="utf-8") for path in (contract.ROOT / "tests").rglob("*.py") if path != ours)
    written = sum(source.count("mark.promise(") for source in sources)
    assert sum(len(tests) for rows in promises.values() for tests in rows.values()) == written


MODULE = """
import pytest
pytestmark = [pytest.mark.topic("Leases"), pytest.mark.timeout(5)]

@pytest.mark.promise("Said " "once.")
@pytest.mark.promise("Said by both.")
async def test_one(): ...

@pytest.mark.promise("Said by both.")
def test_other(): ...

def test_beyond_the_contract(): ...
"""


def test_a_test_promises_what_its_markers_say(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    here = f"{tmp_path.name}/test_it.py"
    assert contract.promises(tmp_path) == {
        "Leases": {"Said once.": [f"{here}::test_one"], "Said by both.": [f"{here}::test_one", f"{here}::test_other"]}
    }


def test_a_statement_stands_under_the_topic_of_most_of_its_tests(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE)
    (tmp_path / "test_more.py").write_text(MODULE.replace("Leases", "Options").replace("Said by both", "Said once"))
    assert {topic: list(rows) for topic, rows in contract.promises(tmp_path).items()} == {
        "Options": ["Said once."],
        "Leases": ["Said by both."],
    }


@pytest.mark.parametrize("written", ['"Nonsense"', ""])
def test_a_module_without_a_known_topic_stops_the_generator(tmp_path: Path, written: str) -> None:
    (tmp_path / "test_it.py").write_text(MODULE.replace('"Leases"', written))
    with pytest.raises(OutOfSync, match=r"test_it\.py"):
        contract.promises(tmp_path)
