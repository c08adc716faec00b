"""`rmq queues` lists the queues of a server with their counts."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq queues` lists the queues of a server with their counts.")
def test_every_queue_of_the_server_is_listed(rmq, text_client):
    orders = RedisMessageQueue("orders", client=text_client)
    orders.publish_many(["one", "two"])
    orders.publish("later", delay_seconds=3600)
    RedisMessageQueue("mails", client=text_client, key_separator=":").publish("for acme", tenant="acme")
    ended = rmq("queues", "--json")
    assert ended.status == ExitStatus.OK
    none = {"processing": 0, "completed": 0, "failed": 0, "dead_letters": 0, "paused": False, "paused_tenants": 0}
    none["partitions"] = 1
    assert ended.documents == [
        {"queue": "mails", "pending": 1, "delayed": 0, "tenants": 1} | none,
        {"queue": "orders", "pending": 2, "delayed": 1, "tenants": 0} | none,
    ]
    ended = rmq("queues", "--limit", "1")
    assert "mails" in ended.out and "orders" not in ended.out


def test_an_empty_server_has_no_queues(rmq):
    ended = rmq("queues")
    assert (ended.status, ended.out, ended.err) == (ExitStatus.OK, "", "no queue is registered on this server\n")
