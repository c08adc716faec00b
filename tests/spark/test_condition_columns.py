"""A condition chooses the same rows in Spark as it chooses records."""

import dataclasses

import pytest
from pyspark.sql import functions as f

from redis_message_queue.protocol.operate.condition import condition
from redis_message_queue.spark.job_options import LETTER_FIELDS
from redis_message_queue.spark.jobs.condition_columns import condition_column
from redis_message_queue.spark.jobs.replay import ReplayOptions
from redis_message_queue.spark.options import TableOptions
from redis_message_queue.spark.tables import table_schema
from redis_message_queue.values.errors import ConfigurationTypeError
from redis_message_queue.values.messages import MessageRecord, moment
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


def test_a_condition_is_a_text_or_a_column(spark):
    ReplayOptions(url="redis://localhost", queue="orders", where=f.col("tenant").isNull())
    with pytest.raises(ConfigurationTypeError, match="must be a condition or a Column, not int"):
        ReplayOptions(url="redis://localhost", queue="orders", where=7)
