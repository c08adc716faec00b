"""Archiving a journal and the sink need only the documented commands; this needs no Spark session."""

import pytest

from redis_message_queue import NotPermittedError, RedisMessageQueue
from redis_message_queue.protocol.publish.sender import OutgoingMessage
from redis_message_queue.spark.journal import JournalReader, StreamId, StreamRange
from redis_message_queue.spark.options import PublishOptions, QueueAddress
from redis_message_queue.spark.sink import BulkPublisher
from redis_message_queue.stored.permissions import JOURNAL, PRODUCER

pytestmark = pytest.mark.topic("Permissions")


@pytest.fixture
def user(client):
    """Makes the user of a role, without some commands; the answer is its URL."""

    def make(server, *without, role=JOURNAL):
        words = ("ACL", "SETUSER", role.name, "reset", "on", ">secret", *role.rules("q").split())
        client.execute_command(*words, *(f"-{command.lower()}" for command in without))
        return f"redis://{role.name}:secret@127.0.0.1:{server.port}/0"

    yield make
    for role in (JOURNAL, PRODUCER):
        client.execute_command("ACL", "DELUSER", role.name)


def archive(url):
    """What an archive reads and writes in Redis."""
    with JournalReader(QueueAddress(url=url, queue="q")) as journal:
        assert journal.state().serial == 2
        census = journal.snapshot()
        first = journal.first_after(StreamId(0, 0))
        assert first is not None
        span = StreamRange(first[0], census.last)
        assert [batch.num_rows for batch in journal.batches(span)] == [2]
        journal.set_mark(census.last)


@pytest.fixture
def journaled(client):
    queue = RedisMessageQueue("q", client=client, journal=True)
    queue.publish("a")
    queue.publish("b")


@pytest.mark.promise("A Redis user with the documented commands and keys of a role can do what the role does.")
def test_a_user_who_may_read_the_journal_can_archive_it(clean_server, journaled, user):
    archive(user(clean_server))


@pytest.mark.promise("A Redis user with the documented commands and keys of a role can do what the role does.")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_user_who_may_publish_can_write_with_the_sink(clean_server, client, user, partitions):
    options = PublishOptions(url=user(clean_server, role=PRODUCER), queue="q", partitions=partitions)
    with BulkPublisher(options) as publisher:
        publisher.publish([OutgoingMessage(b"a"), OutgoingMessage(b"b")], ["1", "2"])
    with BulkPublisher(options) as publisher:
        publisher.publish([OutgoingMessage(b"a"), OutgoingMessage(b"c")], ["1", "3"])
    assert RedisMessageQueue("q", client=client, partitions=partitions).stats().pending == 3


@pytest.mark.parametrize("command", ["EVAL", "EXEC", "HMGET", "HSET", "LLEN", "MULTI", "XRANGE", "XREVRANGE"])
def test_a_command_that_is_missing_is_named(clean_server, journaled, user, command):
    with pytest.raises(NotPermittedError, match=f"may not run .*{command}"):
        archive(user(clean_server, command))
