"""A confirmed publish is on as many replicas, or on disk, as you asked for."""

from queue import Queue
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_message_queue import (
    ConfigurationError,
)
from redis_message_queue.embedded import EmbeddedRedis
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.durability.replicas import (
    CONFIG,
    HASTY,
    PATIENT,
    done,
    every_way,
    lacking,
    payloads,
    publish,
    repeat,
    unconfirmed,
)
from tests.faults.proxy import CUT_AFTER, FaultyProxy
from tests.faults.shells import BlockingShell

pytestmark = pytest.mark.topic("Durability")

ON_DISK = {"confirm_fsync": True, "confirm_timeout_seconds": LIMIT_SECONDS}

SOON_ON_DISK = {"confirm_fsync": True, "confirm_timeout_seconds": 0.05}


def knows_waitaof(client: redis.Redis) -> bool:
    """Whether the server can tell of disks at all."""
    try:
        client.execute_command("WAITAOF", 0, 0, 1)
    except redis.ResponseError:
        return False
    return True


async_only = pytest.mark.parametrize("shell", ["asyncio-packed"], indirect=True)  # where a test takes seconds


def hold_idle_connection(shell: BlockingShell, client: Any) -> Any:
    """Take the connection out of the pool that the next caller would have got."""
    return done(shell, client.connection_pool.get_connection())


def give_connection_back(shell: BlockingShell, client: Any, connection: Any) -> None:
    done(shell, client.connection_pool.release(connection))


# Replicas


@pytest.mark.promise(
    "A publish can wait for replicas (`confirm_replicas`) or the disk (`confirm_fsync`); repeating it stores one "
    "message."
)
@every_way
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decodes", [False, True], ids=["bytes", "text"])
def test_a_confirmed_message_is_on_the_replicas(family, shell, protocol, decodes):
    """When publish() returns, and not a moment later; with every kind of client."""
    client = shell.client(protocol=protocol, decode_responses=decodes)
    queue = shell.queue(client, gateway=PATIENT | {"confirm_replicas": 2})
    assert queue._protocol.port._packs_by_hand is shell.packs_by_hand
    for number in range(1, 4):
        assert publish(shell, queue, f"message {number}") is True
        for replica in family.replicas:
            assert payloads(replica)[number - 1 :] == [b"message %d" % number]
    assert shell.process(queue) == ("message 1" if decodes else b"message 1")


@every_way
def test_a_publish_waits_for_a_replica_that_lags(family, shell):
    """The primary has the message already; the caller hears of it when a replica has it too."""
    queue = shell.queue(gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: family.blocked() == 1)
        assert payloads(family.primary) == [b"message"]
        assert not publishing.done()
    assert publishing.result(LIMIT_SECONDS) is True
    assert b"message" in payloads(family.careful) + payloads(family.careless)
    assert payloads(family.primary) == [b"message"]


@every_way
def test_the_requested_number_of_replicas_is_enough(family, shell):
    """One of two may be gone for one, and is missed for two."""
    one = shell.queue(gateway=PATIENT)
    both = shell.queue(gateway=HASTY | {"confirm_replicas": 2})
    with family.stopped(family.careless):
        assert publish(shell, one, "for one") is True
        assert payloads(family.careful) == [b"for one"]
        error = lacking(shell, both, "1 of 2 replicas have it", "for both")
    assert repeat(shell, both, error, "for both") is True
    assert payloads(family.careless) == [b"for one", b"for both"]


@pytest.mark.promise("Without `confirm_replicas` and `confirm_fsync`, a publish waits for no confirmation.")
def test_a_queue_without_confirmation_waits_for_nobody(family, shell):
    queue = shell.queue()
    asked = family.asked()
    with family.stopped():
        assert publish(shell, queue) is True
    assert family.asked() == asked


@every_way
def test_one_connection_is_enough(family, shell):
    """What asks takes the connection that has published, and gives it back."""
    queue = shell.queue(shell.client(max_connections=1), gateway=PATIENT)
    for _ in range(3):
        assert publish(shell, queue) is True


# Confirmed by mistake


@every_way
def test_a_publish_whose_reply_was_lost_is_not_confirmed_by_mistake(family, shell, proxy):
    """The connection that wrote it is gone, and the one that asks has something to wait for all the same."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        proxy.meet("publish", CUT_AFTER)
        error = unconfirmed(shell, queue)
        assert proxy.seen["publish"] >= 3
        assert payloads(family.primary) == [b"message"]
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


@every_way
def test_another_connection_does_not_confirm_by_mistake(family, shell):
    """The pool gives out one that has written nothing; a repetition waits for the message, not for that connection."""
    client = shell.client()
    queue = shell.queue(client, gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
        published_by = hold_idle_connection(shell, client)
        try:
            error = unconfirmed(shell, queue, repeat_of=error)
        finally:
            give_connection_back(shell, client, published_by)
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_a_round_robin_pool_does_not_confirm_by_mistake(family, blocking):
    """What was published, and what is asked about it, must not depend on who used a connection before."""
    fifo = redis.BlockingConnectionPool(
        host="127.0.0.1", port=family.primary.port, max_connections=3, timeout=1, queue_class=Queue
    )
    queue = blocking.queue(blocking.client(connection_pool=fifo), gateway=HASTY)
    with family.stopped():
        error = unconfirmed(blocking, queue)
    assert repeat(blocking, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_a_server_without_memory_confirms_what_it_has(family, shell):
    """A repetition writes what a full server does not refuse."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
    with family.configured(family.primary, maxmemory=1):
        with pytest.raises(redis.ResponseError, match="memory"):
            publish(shell, queue, "one more")
        assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def is_beyond(server: EmbeddedRedis, shell: BlockingShell, queue: Any) -> bool:
    """Whether this server cannot tell of disks at all; then the queue has said so, and nothing was written."""
    with server.client() as client:
        if knows_waitaof(client):
            return False
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="confirm_fsync needs a server with WAITAOF") as raised:
                publish(shell, queue)
            assert isinstance(raised.value.__cause__, redis.ResponseError)
            assert (raised.value.queue, raised.value.operation) == ("faults", "publish")
        assert client.keys("*") == []
    return True


# Disk


@pytest.mark.promise(
    "A publish can wait for replicas (`confirm_replicas`) or the disk (`confirm_fsync`); repeating it stores one "
    "message."
)
@every_way
def test_a_message_is_confirmed_when_it_is_on_the_disk(family, shell):
    """The server is told not to write through, and the publish is not confirmed until it does."""
    queue = shell.queue(gateway=SOON_ON_DISK)
    if is_beyond(family.primary, shell, queue):
        return
    with family.configured(family.primary, appendfsync="no"):
        error = unconfirmed(shell, queue)
        assert "fsync not done" in str(error)
        assert payloads(family.primary) == [b"message"]
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_a_publish_waits_for_the_disk(family, shell, appendfsync):
    """Whether every write goes through to it, or all of a second together."""
    queue = shell.queue(gateway=ON_DISK)
    with family.configured(family.primary, appendfsync=appendfsync):
        if is_beyond(family.primary, shell, queue):
            return
        assert [publish(shell, queue) for _ in range(3)] == [True] * 3
    assert payloads(family.primary) == [b"message"] * 3


def test_a_message_on_the_disk_survives_a_crash(start_server, tmp_path, shell):
    """And so does the answer to its call: a repetition after the crash counts once."""
    server = start_server(directory=tmp_path, append_only=True, config=CONFIG)
    client = shell.client(port=server.port)
    queue = shell.queue(client, gateway=ON_DISK)
    if is_beyond(server, shell, queue):
        return
    assert publish(shell, queue, "first") is True
    server.kill()
    server.restart()
    assert payloads(server) == [b"first"]
    hasty = shell.queue(client, gateway=SOON_ON_DISK)
    with server.client() as other:
        other.config_set("appendfsync", "no")
    error = unconfirmed(shell, hasty, "second")
    server.kill()
    server.restart()
    assert repeat(shell, hasty, error, "second") is True
    assert payloads(server) == [b"first", b"second"]


@async_only
def test_replicas_must_have_it_on_their_disks_too(family, shell):
    """The one that keeps no file has the message, and does not count until it keeps one."""
    on_one = shell.queue(gateway=ON_DISK | {"confirm_replicas": 1})
    if is_beyond(family.primary, shell, on_one):
        return
    assert publish(shell, on_one, "on one") is True
    assert payloads(family.careful) == [b"on one"]
    # A replica tells of its disk once a second.
    on_both = shell.queue(gateway=ON_DISK | {"confirm_replicas": 2, "confirm_timeout_seconds": 1.2})
    error = lacking(shell, on_both, "fsync done, 1 of 2 replicas have it on disk")
    until(lambda: payloads(family.careless) == [b"on one", b"message"])
    with family.configured(family.careless, appendonly="yes"):
        assert repeat(shell, on_both, error) is True
    assert payloads(family.primary) == [b"on one", b"message"]


@pytest.mark.promise(
    "A publish can wait for replicas (`confirm_replicas`) or the disk (`confirm_fsync`); repeating it stores one "
    "message."
)
def test_a_server_without_a_file_is_found_out_before_anything_is_written(server, clean_server, shell):
    """Every time: somebody may switch it on meanwhile, and then it works."""
    queue = shell.queue(shell.client(port=server.port), gateway=ON_DISK)
    with server.client() as client:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="appendonly") as raised:
                publish(shell, queue)
            assert (raised.value.queue, raised.value.operation) == ("faults", "publish")
        assert client.keys("*") == []
        if knows_waitaof(client):
            client.config_set("appendonly", "yes")
            try:
                assert publish(shell, queue) is True
            finally:
                client.config_set("appendonly", "no")


@pytest.mark.parametrize("stale", ["no", "yes"], ids=["that says nothing", "that answers"])
def test_a_replica_that_is_about_to_be_promoted_is_not_called_misconfigured(shell, start_server, stale):
    """It cannot tell of disks now; a moment later it can, and a publish waits for that as it does for READONLY."""
    server = start_server(append_only=True, config=CONFIG | {"replica-serve-stale-data": stale})
    with server.client() as client, FaultyProxy(server.port) as watching:
        queue = shell.queue(shell.client(port=watching.port), gateway=ON_DISK)
        if is_beyond(server, shell, queue):
            return
        client.execute_command("REPLICAOF", server.host, 1)  # where nobody is
        publishing = start(publish, shell, queue)
        try:
            until(lambda: watching.seen["WAITAOF"] >= 2 or publishing.done())
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert publishing.result(LIMIT_SECONDS) is True
    assert payloads(server) == [b"message"]
