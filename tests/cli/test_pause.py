"""`rmq pause` stops the consumers of a queue, and `rmq resume` lets them go on."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq pause` and `rmq resume` stop the consumers of a queue and let them go on.")
def test_a_queue_is_paused_and_resumed(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client, message_wait_interval_seconds=0)
    queue.publish("m")
    ended = rmq("pause", "orders", "--json")
    assert (ended.status, ended.documents) == (ExitStatus.OK, [{"queue": "orders", "paused": True, "changed": True}])
    assert queue.is_paused()
    assert rmq("queues", "--json").documents[0]["paused"]
    assert not queue.process_message_callback(print)
    assert rmq("resume", "orders", "--json").documents == [{"queue": "orders", "paused": False, "changed": True}]
    assert queue.process_message_callback(print)
    assert rmq("resume", "orders", "--json").documents == [{"queue": "orders", "paused": False, "changed": False}]
