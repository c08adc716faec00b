"""`rmq trace` shows the history of one message."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq trace` shows the history of a message, with who claimed it.")
def test_the_history_of_a_message_is_shown(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client, journal=True)
    receipt = queue.submit("m", tenant="acme")
    assert queue.process_message_callback(len)
    rows = rmq("trace", "orders", receipt.id, "--json").documents
    assert [row["event"] for row in rows] == ["published", "claimed", "acked"]
    assert rows[1]["consumer"] and rows[1]["details"] == {"count": "1"} and rows[0]["tenant"] == "acme"
    ended = rmq("trace", "orders", receipt.id)
    assert ended.status == ExitStatus.OK and "claimed" in ended.out and "count 1" in ended.out
    ended = rmq("trace", "orders", "ab" * 16)
    assert (ended.status, ended.out) == (ExitStatus.FAILED, "")
    assert rmq("trace", "orders", "nonsense").status == ExitStatus.USAGE
