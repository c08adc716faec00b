"""No text of a condition reaches Spark, and the columns that it looks at are known."""

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.spark import spark_options as cli_options
from redis_message_queue.protocol.operate.condition import condition
from redis_message_queue.spark.job_options import ARCHIVE_FIELDS, LETTER_FIELDS
from redis_message_queue.spark.jobs.condition_columns import columns_of
from redis_message_queue.spark.jobs.replay import ReplayOptions
from redis_message_queue.values.errors import ConfigurationError

pytestmark = pytest.mark.topic("Data pipeline")


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


def test_a_name_needs_again():
    """A message is replayed once by default, so a name would have nothing to tell apart."""
    ReplayOptions(url="redis://localhost", queue="orders", name="on Monday", again=True)
    with pytest.raises(ConfigurationError, match="name is for a replay with again"):
        ReplayOptions(url="redis://localhost", queue="orders", name="on Monday")
