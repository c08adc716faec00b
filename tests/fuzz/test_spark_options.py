"""Whatever somebody passes as an option of the source, the sink or the tables: one typed error that names it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_message_queue.spark.options import SinkOptions, SourceOptions, TableOptions, declared_options, spark_name
from redis_message_queue.values.errors import ConfigurationError
from tests.fuzz import values
from tests.fuzz.effort import examples

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # about long values
REQUIRED = {"url": "redis://localhost:1", "queue": "orders", "table": "pending"}
WORDS = ["true", "FALSE", "0", "-1", "1e999", "nan", "inf", "9" * 30, "9" * 5_000, "1.5", "redis://[::1", "binary"]


def usual(role: Any) -> dict[str, Any]:
    return {name: value for name, value in REQUIRED.items() if name in declared_options(role)}


@examples(40, 5_000)
@given(data=st.data(), role=st.sampled_from([SourceOptions, SinkOptions, TableOptions]))
def test_every_option_as_text(data, role):
    """Spark passes every option as text, and its name in any case."""
    name = data.draw(st.sampled_from(list(declared_options(role))), label="option")
    value = data.draw(st.one_of(values.texts, st.sampled_from(WORDS)), label="value")
    written = spark_name(name)
    try:
        role.from_spark(usual(role) | {data.draw(st.sampled_from([written, written.lower(), written.upper()])): value})
    except ConfigurationError as error:
        said = str(error)
        assert written in said or name in said or name in ("queue", "key_separator", "hash_tag", "cluster"), said
        assert said.isprintable(), said


@examples(40, 5_000)
@given(data=st.data(), role=st.sampled_from([SourceOptions, SinkOptions, TableOptions]))
def test_every_option_as_a_value(data, role):
    """The jobs construct the same options in Python."""
    name = data.draw(st.sampled_from(list(declared_options(role))), label="option")
    value = data.draw(values.anything, label="value")
    try:
        role(**usual(role) | {name: value})
    except ConfigurationError as error:
        assert name in str(error) or spark_name(name) in str(error) or "name" in str(error), error


@examples(20, 2_000)
@given(name=values.texts, value=values.texts, role=st.sampled_from([SourceOptions, SinkOptions, TableOptions]))
def test_options_that_do_not_exist(name, value, role):
    """A misspelt option is refused, not ignored."""
    known = {spark_name(one).lower() for one in declared_options(role)} | {"path", "checkpointlocation", "queryname"}
    try:
        role.from_spark(usual(role) | {name: value})
        assert name.lower() in known
    except ConfigurationError as error:
        assert str(error).isprintable()
