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


@pytest.mark.promise("`rmq pause --tenant` stops the consumers of one tenant, and `rmq tenants` shows it.")
def test_a_tenant_is_paused_and_resumed(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client, message_wait_interval_seconds=0)
    queue.publish("a", tenant="a")
    queue.publish("b", tenant="b")
    ended = rmq("pause", "orders", "--tenant", "a", "--json")
    assert ended.documents == [{"queue": "orders", "tenant": "a", "paused": True, "changed": True}]
    assert {row["tenant"]: row["paused"] for row in rmq("tenants", "orders", "--json").documents} == {
        "a": True,
        "b": False,
    }
    assert rmq("consume", "orders").out == "b\n"
    ended = rmq("resume", "orders", "--tenant", "a", "--json")
    assert ended.documents == [{"queue": "orders", "tenant": "a", "paused": False, "changed": True}]
    assert rmq("consume", "orders").out == "a\n"


@pytest.mark.promise("`rmq stats` shows what is paused, and `rmq consume` says why a paused queue gives out nothing.")
def test_what_is_paused_is_said(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    queue.publish("m", tenant="a")
    (row,) = rmq("stats", "orders", "--json").documents
    assert (row["paused"], row["paused_tenants"]) == (False, 0)
    assert "paused" not in rmq("consume", "mails").err
    queue.pause()
    ended = rmq("consume", "orders")
    assert ended.status == ExitStatus.FAILED
    assert "orders is paused: consumers claim nothing until somebody resumes it (rmq resume orders)" in ended.err
    (row,) = rmq("stats", "orders", "--json").documents
    assert (row["paused"], row["pending"]) == (True, 1)
    queue.resume()
    queue.pause(tenant="a")
    ended = rmq("consume", "orders")
    assert ended.status == ExitStatus.FAILED
    assert "orders has 1 paused tenants, and 1 messages wait" in ended.err
    (row,) = rmq("stats", "orders", "--json").documents
    assert (row["paused"], row["paused_tenants"]) == (False, 1)
    rows = rmq("stats", "orders", "--count", "2", "--every", "0.1", "--json").documents
    assert "paused" not in rows[1]["per_second"]
