"""Options are read in any case, and a wrong one gets one clear error that shows no password."""

from typing import Any, get_args, get_type_hints

import pytest

from redis_message_queue.options.declared import GatewayOptions, QueueOptions
from redis_message_queue.spark.job_options import BackfillOptions, ReplayOptions
from redis_message_queue.spark.options import SinkOptions, SourceOptions, TableOptions, declared_options, refuse_unknown
from redis_message_queue.values.errors import ConfigurationError

HERE: dict[str, Any] = {"url": "redis://:hush@localhost:6379/0", "queue": "orders"}


def least(kind: type) -> dict[str, str]:
    """The fewest options that will do."""
    return HERE | ({"table": "pending"} if kind is TableOptions else {})


def test_what_is_not_given_has_its_default():
    assert SourceOptions.from_spark(HERE) == SourceOptions(
        url=HERE["url"],
        queue="orders",
        consumer_group="spark",
        max_messages_per_trigger=100_000,
        min_partitions=None,
        lease_seconds=10,
        fail_on_data_loss=True,
        payload_format="string",
        max_delivery_count=10,
        message_ttl_seconds=None,
        dead_letter_queue=None,
        max_dead_letter_length=None,
        key_separator="::",
        hash_tag=False,
        cluster=False,
    )


def test_names_are_read_in_any_case():
    """Spark lower-cases them on some of their ways."""
    for name in ("maxMessagesPerTrigger", "maxmessagespertrigger", "MAXMESSAGESPERTRIGGER"):
        assert SourceOptions.from_spark(HERE | {name: "7"}).max_messages_per_trigger == 7


def test_values_become_what_they_mean():
    options = SinkOptions.from_spark(
        HERE
        | {
            "batchSize": "500",
            "pendingOverloadBlockTimeoutSeconds": "0.5",
            "dedupKeyColumn": "key",
            "maxPendingLength": "10",
        }
    )
    assert (options.batch_size, options.pending_overload_block_timeout_seconds) == (500, 0.5)
    assert (options.dedup_key_column, options.max_pending_length) == ("key", 10)
    assert SourceOptions.from_spark(HERE | {"failOnDataLoss": "FALSE"}).fail_on_data_loss is False
    assert TableOptions.from_spark(HERE | {"table": "Dead_Letters"}).table == "dead_letters"


def test_the_rules_of_consumers_are_options_of_the_source():
    options = SourceOptions.from_spark(
        HERE
        | {
            "maxDeliveryCount": "0",
            "messageTtlSeconds": "60",
            "deadLetterQueue": "{orders}:poison",
            "maxDeadLetterLength": "9",
        }
        | {"keySeparator": ":", "hashTag": "true", "cluster": "true"}
    )
    assert (options.max_delivery_count, options.message_ttl_seconds) == (None, 60)
    assert (options.dead_letter_queue, options.max_dead_letter_length) == ("{orders}:poison", 9)
    assert (options.key_separator, options.hash_tag, options.cluster) == (":", True, True)
    assert SourceOptions.from_spark(HERE | {"maxDeliveryCount": "3"}).max_delivery_count == 3


@pytest.mark.parametrize("url", ["unix:///tmp/redis.sock", "redis://:hush@localhost:6379/3"])
def test_a_cluster_has_neither_socket_nor_database(url):
    with pytest.raises(ConfigurationError, match="option cluster is true, but the url names a socket or") as caught:
        SourceOptions.from_spark(HERE | {"url": url, "cluster": "true"})
    assert "hush" not in str(caught.value)


def test_what_spark_adds_is_ignored():
    added = {"path": "x", "checkpointLocation": "/somewhere", "queryName": "q"}
    assert SinkOptions.from_spark(HERE | added) == SinkOptions.from_spark(HERE)
    refuse_unknown(HERE | added)


@pytest.mark.parametrize("missing", ["url", "queue"])
@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions, TableOptions])
def test_a_missing_option_is_named_with_what_it_is(kind, missing):
    given = {name: value for name, value in HERE.items() if name != missing}
    with pytest.raises(
        ConfigurationError, match=rf"option {missing} is missing\. .* Add \.option\('{missing}', \.\.\.\)"
    ):
        kind.from_spark(given)


def test_a_table_must_be_named():
    with pytest.raises(
        ConfigurationError, match=r"option table is missing\. The table to read: one of pending, processing"
    ):
        TableOptions.from_spark(HERE)


def test_an_unknown_option_is_told_what_it_may_have_meant():
    with pytest.raises(ConfigurationError, match=r"option dedupColumn is unknown; did you mean dedupKeyColumn\?"):
        refuse_unknown(HERE | {"dedupColumn": "key"})
    with pytest.raises(ConfigurationError, match=r"option xyzzy is unknown; the options are: batchSize, cluster"):
        refuse_unknown(HERE | {"xyzzy": "1"})


def test_an_option_of_another_part_is_not_swallowed():
    with pytest.raises(ConfigurationError, match="dedupKeyColumn belongs to the sink and has no effect on the stream"):
        SourceOptions.from_spark(HERE | {"dedupKeyColumn": "key"})


@pytest.mark.parametrize(
    ("kind", "name", "value", "says"),
    [
        (SourceOptions, "queue", " ", "option queue must not be empty"),
        (
            SourceOptions,
            "maxMessagesPerTrigger",
            "0",
            "option maxMessagesPerTrigger must be 1 or more, not 0",
        ),
        (SourceOptions, "minPartitions", "1.5", "option minPartitions must be a whole number, not '1.5'"),
        (
            SourceOptions,
            "leaseSeconds",
            "soon",
            "option leaseSeconds must be a number, not 'soon'",
        ),
        (SourceOptions, "leaseSeconds", "nan", "leaseSeconds must be a finite number"),
        (SourceOptions, "failOnDataLoss", "yes", "failOnDataLoss must be true or false, not 'yes'"),
        (SourceOptions, "payloadFormat", "avro", "payloadFormat must be one of string, binary, not 'avro'"),
        (SourceOptions, "maxDeliveryCount", "-1", "maxDeliveryCount must be 1 or more, not -1"),
        (SourceOptions, "messageTtlSeconds", "0", "messageTtlSeconds must be positive, not 0.0"),
        (SourceOptions, "maxDeadLetterLength", "0", "maxDeadLetterLength must be 1 or more"),
        (SourceOptions, "keySeparator", "", "keySeparator must not be empty"),
        (SourceOptions, "cluster", "1", "cluster must be true or false, not '1'"),
        (SinkOptions, "batchSize", "1001", "batchSize must be at most 1,000, not 1001"),
        (
            SinkOptions,
            "pendingOverloadBlockTimeoutSeconds",
            "-1",
            "pendingOverloadBlockTimeoutSeconds must be at least 0",
        ),
        (SinkOptions, "maxPayloadBytes", "1e3", "maxPayloadBytes must be a whole number, not '1e3'"),
        (TableOptions, "table", "dead", "table must be one of pending, processing, .*, journal, not 'dead'"),
        (
            TableOptions,
            "recordsOf",
            "pending",
            "recordsOf must be one of completed, failed, dead_letters, not 'pending'",
        ),
    ],
)
def test_a_bad_value_is_named_with_what_would_do(kind, name, value, says):
    with pytest.raises(ConfigurationError, match=says):
        kind.from_spark(least(kind) | {name: value})


def test_a_payload_cannot_be_invalid_if_all_are_bytes():
    for word in ("column", "dead_letters"):
        with pytest.raises(
            ConfigurationError, match=rf"invalidPayloads={word} is for payloads that are read as strings"
        ):
            SourceOptions.from_spark(HERE | {"invalidPayloads": word, "payloadFormat": "binary"})


@pytest.mark.parametrize("word", ["failed", "dead_letters"])
def test_whose_records_to_read_is_an_option_of_the_table_of_records(word):
    with pytest.raises(
        ConfigurationError, match="option recordsOf applies only to table=records, not to table=pending; leave it out"
    ):
        TableOptions.from_spark(HERE | {"table": "pending", "recordsOf": word})
    with pytest.raises(ConfigurationError, match="option recordsOf applies only to table=records, not to"):
        TableOptions(**HERE, table="journal", records_of="completed")
    assert TableOptions.from_spark(HERE | {"table": "records", "recordsOf": word}).records_of == word
    assert TableOptions.from_spark(HERE | {"table": "records"}).records_of == "dead_letters"


def test_options_are_checked_in_python_too():
    with pytest.raises(ConfigurationError, match="min_partitions must be 1 or more, not 0"):
        SourceOptions(**HERE, min_partitions=0)
    with pytest.raises(ConfigurationError, match="format must be one of json, text, csv, parquet, table, not 'xml'"):
        BackfillOptions(**HERE, source="x", format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions, TableOptions, BackfillOptions, ReplayOptions])
def test_an_option_that_the_queue_has_too_has_the_same_description(options):
    """And the same name: there is no other name for waiting for room, or for the deduplication window."""
    of_queue = get_type_hints(GatewayOptions, include_extras=True) | get_type_hints(QueueOptions, include_extras=True)
    shared = declared_options(options).keys() & of_queue.keys() - {"name"}
    assert {"key_separator", "hash_tag", "dead_letter_queue"} <= shared
    for name in shared:
        said = next(one for one in get_args(of_queue[name]) if isinstance(one, str))
        assert declared_options(options)[name].description.lower().startswith(said.lower().rstrip("."))


@pytest.mark.parametrize("url", ["http://:hush@localhost", "redis://:hush@localhost:port/0", "hush", "redis://[hush"])
def test_a_url_that_is_none_is_not_shown(url):
    with pytest.raises(ConfigurationError, match="option url is not the URL of a Redis server") as caught:
        SinkOptions.from_spark(HERE | {"url": url})
    assert "hush" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions, TableOptions])
def test_options_do_not_show_the_password(kind):
    assert "hush" not in repr(kind.from_spark(least(kind)))
