"""A condition chooses the same rows in Spark as it chooses records, and no text of it reaches Spark."""

import dataclasses

import pytest
from pyspark.sql import functions as f

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.spark import options as cli_options
from redis_message_queue.condition import condition
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError
from redis_message_queue.messages import MessageRecord, moment
from redis_message_queue.spark.job_options import ARCHIVE_FIELDS, LETTER_FIELDS
from redis_message_queue.spark.jobs.condition_columns import columns_of, condition_column
from redis_message_queue.spark.jobs.replay import ReplayOptions
from redis_message_queue.spark.options import TableOptions
from redis_message_queue.spark.tables import table_schema
from tests.cli.test_condition import LETTER, OF_A_LETTER, OF_NOTHING

pytestmark = pytest.mark.topic("Data pipeline")


RECORDS = [
    dataclasses.replace(LETTER, payload=LETTER.payload.encode()),
    MessageRecord(payload=None),
    MessageRecord(payload=b"\xff"),
    MessageRecord(
        payload=b"[1, 2]",
        tenant="ACME",
        delivery_count=0,
        error="",
        reason="\u0130\u03a3 \xdf",
        error_type="\U0001d11e",
    ),
    MessageRecord(payload=b"plain text", tenant="", error="\0", published_at=moment(0), finished_at=moment(0)),
    MessageRecord(payload=b'{"at": null, "n": 1}', delivery_count=1, claimed_at=moment(5), published_at=moment(9)),
]
OTHERS = [
    "claimed_at < published_at",
    "published_at == json['at']",
    "published_at <= finished_at and tenant == ''",
    r"reason.lower() == 'i\u0307\u03c3 \xdf'",
    "error_type > '\uffff'",
    "tenant.lower() in ['acme']",
    "delivery_count == True",
    "delivery_count in [True, 7]",
    "delivery_count in []",
    "json['n'] == 1 or json[1] == 2",
    "json == None",
    "error in payload",
    "payload < 'z' and not payload == 'plain text'",
    "tenant in json or error_type in [None]",
    "None in [None]",
    "not " * 90 + "tenant == 'acme'",
    "1 == 1.0",
]


@pytest.mark.promise("A replay condition means the same in Spark as for records; SQL is refused before Spark starts.")
def test_a_column_holds_where_the_condition_holds(spark):
    texts = [text for text, _ in (*OF_A_LETTER, *OF_NOTHING) if "headers" not in text] + OTHERS
    conditions = [condition(text, LETTER_FIELDS) for text in texts]
    letters = TableOptions(url="redis://unused", queue="orders", table="dead_letters", payload_format="binary")
    schema = table_schema(letters)
    found = spark.createDataFrame([[getattr(one, name, None) for name in schema.names] for one in RECORDS], schema)
    answers = found.select(*(condition_column(one).alias(str(place)) for place, one in enumerate(conditions))).collect()
    for record, answer in zip(RECORDS, answers, strict=True):
        said = [holds(record) for holds in conditions]
        assert dict(zip(texts, answer, strict=True)) == dict(zip(texts, said, strict=True))


HARMFUL = [
    "reflect('java.lang.System', 'exit', 7) is null",
    "reflect('java.lang.System', 'exit', 7) is None",
    "java_method('java.lang.System', 'exit', 7) = '0'",
    "id in (select value from text.`/etc/passwd`)",
    "exists (select * from csv.`/etc/passwd`)",
    "payload == read_files('/etc/passwd')",
    "tenant = 'acme'",
]


@pytest.mark.promise("A replay condition means the same in Spark as for records; SQL is refused before Spark starts.")
@pytest.mark.parametrize("where", HARMFUL)
@pytest.mark.parametrize("source", [{}, {"archive": "x"}])
def test_sql_is_refused_before_spark_is_asked(source, where):
    with pytest.raises(ConfigurationError, match=r"^where: "):
        ReplayOptions(url="redis://localhost", queue="orders", where=where, **source)


@pytest.mark.promise("A replay condition means the same in Spark as for records; SQL is refused before Spark starts.")
@pytest.mark.parametrize("where", HARMFUL)
def test_the_command_refuses_sql_before_spark_is_started(monkeypatch, capsys, where, server):
    from redis_message_queue.__main__ import main

    monkeypatch.setattr(cli_options.SessionOptions, "session", None)
    assert main(["spark", "replay", "orders", "--dry-run", "--url", server.url, "--where", where]) == ExitStatus.USAGE
    assert "where: " in capsys.readouterr().err


def test_a_source_has_its_own_fields():
    assert condition("state == 'dead' and failures > 1", ARCHIVE_FIELDS)
    with pytest.raises(ConfigurationError, match="has no field 'claimed_at'"):
        condition("claimed_at is None", ARCHIVE_FIELDS)
    with pytest.raises(ConfigurationError, match="has no field 'state'"):
        condition("state == 'dead'", LETTER_FIELDS)


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("state == 'dead'", {"state"}),
        ("not (tenant == 'a' or json['order'][0] > 2) and failures in [1, 2]", {"tenant", "payload", "failures"}),
        ("reason.lower().startswith('x') and error_type is None", {"reason", "error_type"}),
        ("tenant in error", {"tenant", "error"}),
        ("1 == 1", set()),
    ],
)
def test_the_columns_that_a_condition_looks_at_are_known(where, columns):
    """Others are not read from an archive."""
    assert columns_of(condition(where, ARCHIVE_FIELDS)) == columns


def test_a_condition_is_a_text_or_a_column(spark):
    ReplayOptions(url="redis://localhost", queue="orders", where=f.col("tenant").isNull())
    with pytest.raises(ConfigurationTypeError, match="must be a condition or a Column, not int"):
        ReplayOptions(url="redis://localhost", queue="orders", where=7)


def test_a_name_needs_again():
    """A message is replayed once by default, so a name would have nothing to tell apart."""
    ReplayOptions(url="redis://localhost", queue="orders", name="on Monday", again=True)
    with pytest.raises(ConfigurationError, match="name is for a replay with again"):
        ReplayOptions(url="redis://localhost", queue="orders", name="on Monday")
