"""The table of the contract names tests that exist, and no test of the contract is missing from it."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from docs import generate
from docs.reference import contract
from docs.reference.markdown import OutOfStep
from tests.docs.pages import ROOT

PROMISES = contract.promises()


@cache
def functions_of(path: Path) -> list[str]:
    """The names of the test functions of a file, as pytest would find them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [function.name for function in functions if function.name.startswith("test_")]


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name in functions_of(ROOT / path)


def named() -> list[str]:
    return [test for rows in PROMISES.values() for tests in rows.values() for test in tests]


@pytest.mark.parametrize("topic", PROMISES)
def test_every_test_that_a_statement_names_exists(topic: str) -> None:
    """By file and function; a test that was renamed takes its statement along, or leaves it unchecked."""
    assert [test for tests in PROMISES[topic].values() for test in tests if not exists(test)] == []


@pytest.mark.parametrize("topic", PROMISES)
def test_every_statement_is_checked_by_a_test(topic: str) -> None:
    """At least one, and none of them twice."""
    for statement, tests in PROMISES[topic].items():
        assert tests, f"nothing checks: {statement}"
        assert len(tests) == len(set(tests)), f"one test twice: {statement}"


def test_every_statement_is_a_sentence_and_stands_once() -> None:
    """In all topics together."""
    statements = [statement for rows in PROMISES.values() for statement in rows]
    assert [one for one, times in Counter(statements).items() if times > 1] == []
    assert [one for one in statements if not one.endswith(".") or not 15 < len(one) < 160] == []


def test_every_test_of_the_contract_has_a_statement_or_stands_beside() -> None:
    """Whoever adds a test to tests/contract says in contract.toml what it checks, or that it is for ourselves."""
    told = {*named(), *contract.beyond()}
    files = sorted((ROOT / "tests/contract").glob("test_*.py"))
    tests = [f"{path.relative_to(ROOT).as_posix()}::{name}" for path in files for name in functions_of(path)]
    assert [test for test in tests if test not in told] == []


def test_what_stands_beside_exists_and_has_no_statement() -> None:
    """Otherwise it could be left out."""
    assert [test for test in contract.beyond() if not exists(test)] == []
    assert set(contract.beyond()) & set(named()) == set()


def test_the_page_is_what_its_source_makes_of_it() -> None:
    """If this fails: python -m docs.generate."""
    written = (generate.REFERENCE / "contract.md").read_text(encoding="utf-8")
    assert written == contract.contract_page()
    assert all(statement in written for rows in PROMISES.values() for statement in rows)


def test_a_statement_that_stands_in_two_topics_stops_the_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than a page that says it twice."""
    twice = tmp_path / "contract.toml"
    twice.write_text('[a]\n"Said." = ["x"]\n[b]\n"Said." = ["y"]\n["beyond the contract"]\ntests = []\n')
    monkeypatch.setattr(contract, "SOURCE", twice)
    with pytest.raises(OutOfStep, match=r"Said\."):
        contract.contract_page()
