"""`rmq cancel` cancels messages by their ids."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq cancel` cancels messages by their ids and says what became of each.")
def test_messages_are_cancelled(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client, message_wait_interval_seconds=0)
    delayed, waiting = queue.submit("d", delay_seconds=60), queue.submit("w")
    ended = rmq("cancel", "orders", delayed.id, waiting.id, "--json")
    assert (ended.status, ended.documents) == (
        ExitStatus.OK,
        [{"id": delayed.id, "outcome": "cancelled"}, {"id": waiting.id, "outcome": "marked"}],
    )
    assert rmq("peek", "orders", "--json").documents[0]["cancelled"] is True
    assert not queue.process_message_callback(print)
    ended = rmq("cancel", "orders", waiting.id)
    assert ended.status == ExitStatus.FAILED and "unknown" in ended.out


def test_a_message_in_flight_and_a_wrong_id(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    one = queue.submit("m")
    with queue.process_message():
        ended = rmq("cancel", "orders", one.id, "--json")
        assert (ended.status, ended.documents) == (ExitStatus.FAILED, [{"id": one.id, "outcome": "in_flight"}])
    queue.submit("n", delay_seconds=60)
    assert rmq("cancel", "orders", one.id, "nonsense").status == ExitStatus.USAGE
    assert rmq("cancel", "orders").status == ExitStatus.USAGE
