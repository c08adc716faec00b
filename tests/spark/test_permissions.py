"""Archiving a journal needs only the documented commands; this needs no Spark session."""

import pytest

from redis_message_queue import NotPermittedError, RedisMessageQueue
from redis_message_queue.permissions import JOURNAL
from redis_message_queue.spark.journal import JournalReader, StreamId, StreamRange
from redis_message_queue.spark.options import QueueAddress

pytestmark = pytest.mark.topic("Permissions")


@pytest.fixture
def user(client):
    """Makes the user, without some commands; the answer is its URL."""

    def make(server, *without):
        words = ("ACL", "SETUSER", JOURNAL.name, "reset", "on", ">secret", *JOURNAL.rules("q").split())
        client.execute_command(*words, *(f"-{command.lower()}" for command in without))
        return f"redis://{JOURNAL.name}:secret@127.0.0.1:{server.port}/0"

    yield make
    client.execute_command("ACL", "DELUSER", JOURNAL.name)


def archive(url):
    """What an archive reads and writes in Redis."""
    with JournalReader(QueueAddress(url=url, queue="q")) as journal:
        assert journal.state().serial == 2
        census = journal.snapshot()
        first = journal.first_after(StreamId(0, 0))
        assert first is not None
        span = StreamRange(first[0], census.last)
        assert journal.last_serial(span) == 2
        assert [row["event"] for row in journal.rows(span)]
        journal.set_mark(census.last)


@pytest.fixture
def journaled(client):
    queue = RedisMessageQueue("q", client=client, journal=True)
    queue.publish("a")
    queue.publish("b")


@pytest.mark.promise("A Redis user with the documented commands and keys of a role can do what the role does.")
def test_a_user_who_may_read_the_journal_can_archive_it(clean_server, journaled, user):
    archive(user(clean_server))


@pytest.mark.parametrize("command", ["EVAL", "EXEC", "HMGET", "HSET", "LLEN", "MULTI", "XRANGE", "XREVRANGE"])
def test_a_command_that_is_missing_is_named(clean_server, journaled, user, command):
    with pytest.raises(NotPermittedError, match=f"may not run .*{command}"):
        archive(user(clean_server, command))
