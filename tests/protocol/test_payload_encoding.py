"""A payload has the same bytes, and is refused for the same reasons, with orjson and without it."""

import enum
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import PayloadRules
from tests.depth import often

RULES = PayloadRules()


class Kind(enum.Enum):
    OLD = "old"


class Text(str):
    pass


class Mapping(dict[Any, Any]):
    pass


def outcome(message: dict[Any, Any]) -> bytes | tuple[str, str]:
    try:
        return RULES.encode(message)
    except Exception as error:
        return type(error).__name__, str(error)


def outcome_without_orjson(message: dict[Any, Any]) -> bytes | tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "_refuse_other_keys", None)
        return outcome(message)


def test_these_tests_run_with_orjson() -> None:
    assert envelope._refuse_other_keys is not None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=20,
)


@settings(max_examples=often(20, 400), deadline=None)
@given(st.dictionaries(st.text() | st.integers() | st.booleans(), VALUES))
def test_any_message_has_the_same_outcome(message: dict[Any, Any]) -> None:
    assert outcome(message) == outcome_without_orjson(message)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_the_bytes_are_those_of_the_standard_library(message: dict[str, str]) -> None:
    assert outcome(message) == json.dumps(message, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "message",
    [
        {1: "a"},
        {"a": [{"b": {2: "c"}}]},
        {"a": ({None: 1},)},
        {"a": Mapping({3: 1})},
        {"a": {Kind.OLD: 1}},
        {"a": {Text("b"): 1}},
        {"a": 2**80},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": 1e16, "b": 1e-7, "c": -0.0},
        {"a": uuid.UUID(int=1)},
        {"a": Kind.OLD},
        {"a": datetime(2026, 1, 1, tzinfo=UTC)},
        {"a": b"bytes"},
        {"a": "\ud800"},
    ],
    ids=repr,
)
def test_what_orjson_reads_differently_has_the_same_outcome(message: dict[Any, Any]) -> None:
    assert outcome(message) == outcome_without_orjson(message)


@pytest.mark.parametrize("message", [{1: "a"}, {"a": [{"b": {2: "c"}}]}, {"a": ({None: 1},)}, {"a": Mapping({3: 1})}])
def test_a_key_that_is_no_text_is_refused_at_any_depth(message: dict[Any, Any]) -> None:
    kind, text = outcome(message)
    assert kind == "PayloadTypeError"
    assert "a key at message" in str(text)
