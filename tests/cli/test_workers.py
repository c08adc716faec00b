"""`rmq workers` shows who runs a consumer loop on a queue."""

import os
import threading

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.protocol.loop import worker_entry

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq workers` lists the processes that run a consumer loop on a queue.")
def test_the_workers_of_a_queue_are_listed(rmq, text_client, monkeypatch):
    monkeypatch.setattr(worker_entry, "_FIRST_SECONDS", 0.01)
    ended = rmq("workers", "orders")
    assert (ended.status, ended.out) == (ExitStatus.FAILED, "")
    assert "no worker is connected" in ended.err
    queue = RedisMessageQueue("orders", client=text_client, consumer_name="packer")
    loop = threading.Thread(target=lambda: queue.run(print, concurrency=3, signals=False))
    loop.start()
    try:
        while (ended := rmq("workers", "orders", "--json")).status == ExitStatus.FAILED:
            assert loop.is_alive()
        (row,) = ended.documents
        assert (row["name"], row["pid"], row["concurrency"], row["last_claim"]) == ("packer", os.getpid(), 3, None)
        shown = rmq("workers", "orders").out
        assert row["consumer"] in shown and row["version"] in shown
    finally:
        queue.drain(timeout=0)
        text_client.lpush(queue.key.wakeup, "1")
        loop.join()
    assert rmq("workers", "orders").status == ExitStatus.FAILED
