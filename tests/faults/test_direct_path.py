"""The path that writes to a connection's socket itself: it is taken, and whatever is unusual is left to redis-py."""

import asyncio
import contextlib
import inspect
import logging
import select
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_message_queue import RedisMessageQueue
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.direct_pool import _wait
from redis_message_queue.values.errors import LuaScriptError
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.shells import AsyncioShell, BlockingShell

pytestmark = pytest.mark.topic("Connections and clients")


@pytest.fixture(params=["sync", "asyncio"])
def shell(request, server, truth):
    """The sync and the async queue, without a proxy."""
    if request.param == "sync":
        opened = BlockingShell(server.port, redis.Redis)
    else:
        opened = AsyncioShell(server.port, redis.asyncio.Redis)
    yield opened
    opened.close()


def done(shell, work):
    """The result of a call, whichever shell made it."""
    if not inspect.isawaitable(work):
        return work

    async def awaited():
        return await work

    return shell.runner.run(awaited())


def idle_connection(shell, client):
    """The connection that the next call will use. It stays in the pool."""
    (connection,) = client.connection_pool._available_connections
    return connection


def uses_the_direct_path(shell, client):
    connection = idle_connection(shell, client)
    if isinstance(shell, AsyncioShell):
        return connection._rmq_tap.transport is connection._writer.transport
    return connection._rmq_open_socket.sock is connection._sock


def warm(shell, **options):
    """A client with one connection, and a queue that has used it."""
    client = shell.client(**options)
    queue = shell.queue(client)
    for _ in range(2):  # redis-py sends the first command, and opens the connection for it
        assert shell.publish(queue, "warm") is True
        assert shell.process(queue) is not None
    return client, queue


def check(shell, client, queue, text="message"):
    """A message comes and goes, and the user's command gets its own reply."""
    sent = text if client.get_encoder().decode_responses else text.encode()
    assert shell.publish(queue, text) is True
    assert shell.process(queue) == sent
    assert shell.command(client, "ECHO", text) == sent


# What it works with


@pytest.mark.promise("The direct path works with RESP2 and RESP3, bytes and text, TCP and Unix sockets, and any size.")
@pytest.mark.parametrize("decode_responses", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_of_every_size_come_back_whole(shell, truth, protocol, decode_responses):
    client, queue = warm(shell, protocol=protocol, decode_responses=decode_responses)
    for size in (1, 200, 65_000, 65_536, 70_000, 3_000_000):
        check(shell, client, queue, "x" * size)
    assert uses_the_direct_path(shell, client)
    assert truth.is_empty


class OneByteSocket(socket.socket):
    """A socket from which nobody reads more than a byte at a time."""

    __module__ = "socket"  # as the direct path expects it

    def recv(self, size: int, flags: int = 0) -> bytes:
        return super().recv(1, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return super().recv_into(buffer, 1, flags)


def read_byte_by_byte(shell, client) -> None:
    """Let replies arrive in the smallest pieces."""
    connection = idle_connection(shell, client)
    if isinstance(shell, AsyncioShell):
        tap = connection._rmq_tap
        receive = tap.data_received
        tap.data_received = lambda data: [receive(data[at : at + 1]) for at in range(len(data))]
        return
    timeout, parser = connection._sock.gettimeout(), connection._parser
    connection._sock = slow = OneByteSocket(fileno=connection._sock.detach())
    slow.settimeout(timeout)
    for holder in (parser, getattr(parser, "_buffer", None)):
        if hasattr(holder, "_sock"):
            holder._sock = slow


def test_a_reply_can_arrive_byte_by_byte(shell, truth):
    client, queue = warm(shell)
    opened = idle_connection(shell, client)
    read_byte_by_byte(shell, client)
    for number in range(3):
        check(shell, client, queue, f"message {number}")
    assert idle_connection(shell, client) is opened
    assert uses_the_direct_path(shell, client)
    assert truth.is_empty


@pytest.mark.parametrize("socket_timeout", [None, pytest.param(5, marks=pytest.mark.in_full)])
def test_a_client_without_a_timeout_can_send_much(shell, truth, socket_timeout):
    """More than the buffers of a socket hold, so that sending has to wait for the server."""
    client, queue = warm(shell, socket_timeout=socket_timeout)
    check(shell, client, queue, "x" * 12_000_000)
    assert uses_the_direct_path(shell, client)


def test_batches_and_piggybacked_acks_use_it(shell, truth):
    client, queue = warm(shell)
    assert done(shell, queue.publish_many([f"{number}" for number in range(300)])) == [True] * 300
    summary = done(shell, queue.run(lambda message: None, prefetch=50, until_empty=True))
    assert summary.handled == 300
    assert uses_the_direct_path(shell, client)
    assert truth.is_empty


def test_an_error_of_the_server_is_typed_and_leaves_the_connection_open(shell, truth):
    client, queue = warm(shell)
    opened = idle_connection(shell, client)
    truth.client.delete(truth.key.pending)
    truth.client.set(truth.key.pending, "a string")
    with pytest.raises(LuaScriptError, match="WRONGTYPE"):
        shell.publish(queue, "message")
    truth.client.delete(truth.key.pending)
    check(shell, client, queue)
    assert idle_connection(shell, client) is opened


@pytest.mark.parametrize("options", [{"health_check_interval": 30}, {"connection_pool": "blocking"}])
def test_what_redis_py_has_to_watch_it_does_itself(shell, server, truth, options):
    if "connection_pool" in options:
        module = redis.asyncio if isinstance(shell, AsyncioShell) else redis
        options = {"connection_pool": module.BlockingConnectionPool(host="127.0.0.1", port=server.port)}
    client, queue = warm(shell, **options)
    check(shell, client, queue)
    pool = client.connection_pool
    connections = getattr(pool, "_connections", None) or pool._available_connections
    assert not any(hasattr(one, "_rmq_tap") or hasattr(one, "_rmq_open_socket") for one in connections)


# What belongs to the user


@pytest.mark.promise("Between two calls the queue holds no connection of the client's pool.")
@pytest.mark.parametrize("size", [1, 2])
def test_every_connection_of_a_small_pool_is_the_users_between_two_calls(shell, truth, size):
    client, queue = warm(shell, max_connections=size)
    pool = client.connection_pool
    for _ in range(3):
        taken = [done(shell, pool.get_connection()) for _ in range(size)]
        for connection in taken:
            done(shell, pool.release(connection))
        check(shell, client, queue)
    assert not pool._in_use_connections


def test_closing_the_client_closes_the_connections(shell, truth):
    client, queue = warm(shell)
    for close in (
        client.connection_pool.disconnect,
        client.aclose if isinstance(shell, AsyncioShell) else client.close,
    ):
        done(shell, close())
        connections = client.connection_pool._available_connections
        assert not any(getattr(one, "_sock", None) or getattr(one, "_writer", None) for one in connections)
        check(shell, client, queue)


def test_a_drained_queue_leaves_no_connection_in_use(shell, truth):
    client, queue = warm(shell)
    assert done(shell, queue.drain())
    assert not client.connection_pool._in_use_connections


# Connections that cannot be used


def quiet(caplog):
    """Nothing was retried: redis-py replaces a connection that it finds closed."""
    return not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.promise("A connection that the server closed between two calls is replaced without a retry.")
def test_a_connection_that_was_killed_between_two_calls_is_replaced(shell, truth, caplog):
    client, queue = warm(shell)
    for _ in range(3):
        number = shell.command(client, "CLIENT", "ID")
        truth.client.client_kill_filter(_id=number)
        if isinstance(shell, AsyncioShell):
            done(shell, asyncio.sleep(0.05))  # the loop has to hear of it; if it does not, there is a retry
            caplog.clear()
        check(shell, client, queue)
    assert isinstance(shell, AsyncioShell) or quiet(caplog)
    assert truth.is_empty


def test_a_server_that_was_restarted_between_two_calls_is_used_again(start_server, truth, caplog):
    with contextlib.ExitStack() as stack:
        private = start_server()
        opened = stack.enter_context(contextlib.closing(BlockingShell(private.port, redis.Redis)))
        client, queue = warm(opened)
        private.restart()
        check(opened, client, queue)


@pytest.mark.promise("An aborted call never leaves its reply on a connection for another call.")
def test_a_reply_that_nobody_read_is_not_taken_for_ours(shell, truth):
    client, queue = warm(shell)
    for _ in range(2):
        leave_a_reply(shell, idle_connection(shell, client))
        check(shell, client, queue)
    assert truth.is_empty


def leave_a_reply(shell, connection):
    """Send a command on an idle connection, and do not read its reply."""
    ping = b"*1\r\n$4\r\nPING\r\n"
    if not isinstance(shell, AsyncioShell):
        connection._sock.sendall(ping)
        until(connection._rmq_open_socket.has_input)
        return

    async def send():
        connection._writer.write(ping)
        await asyncio.sleep(0.02)

    shell.runner.run(send())
    until(lambda: shell.runner.run(asyncio.sleep(0)) or connection._reader._buffer)


@pytest.mark.promise("Push messages of RESP3 are handled by redis-py and never taken for a reply.")
def test_push_messages_between_our_replies_do_not_confuse_it(shell, truth):
    """Each of our own writes makes the server announce changed keys on the same connection."""
    client, queue = warm(shell, protocol=3)
    assert shell.command(client, "CLIENT", "TRACKING", "ON", "BCAST") == b"OK"
    for number in range(40):
        truth.client.set("a key of somebody else", number)
        check(shell, client, queue, f"message {number}")
    assert truth.is_empty


def test_the_rest_of_a_push_message_is_not_taken_for_a_reply(server, truth):
    """redis-py has read its first bytes; the others are still on the way."""
    shell = BlockingShell(server.port, redis.Redis)
    with contextlib.closing(shell):
        client, queue = warm(shell, protocol=3)
        idle_connection(shell, client)._rmq_open_socket.feed(b">2\r\n$10\r\ninva")
        check(shell, client, queue)


def test_a_pool_that_is_closed_while_a_consumer_waits_costs_it_a_retry(server, truth):
    """Another thread closes all sockets, also the one that is in use."""
    shell = BlockingShell(server.port, redis.Redis)
    with contextlib.closing(shell):
        client, _ = warm(shell)
        queue = shell.queue(client, {"message_wait_interval_seconds": LIMIT_SECONDS})
        waiting = start(shell.process, queue)
        until(lambda: truth.client.info("clients")["blocked_clients"] == 1)
        client.connection_pool.disconnect()
        assert shell.publish(queue, "message") is True
        assert waiting.result(LIMIT_SECONDS) == b"message"
        assert truth.is_empty
        assert not client.connection_pool._in_use_connections


# Waits that must end in time


@pytest.mark.promise("A lease or a delay that ends wakes a waiting consumer without waiting for the server's timer.")
@pytest.mark.parametrize("shell_class", [BlockingShell, AsyncioShell], ids=["sync", "asyncio"])
def test_a_punctual_wait_makes_the_server_look_at_its_timers(start_server, shell_class):
    """This server looks once a second by itself. A wait that need not be punctual sends nothing."""
    private = start_server(config={"hz": 1})
    client_class = redis.asyncio.Redis if shell_class is AsyncioShell else redis.Redis
    with contextlib.closing(shell_class(private.port, client_class)) as opened:
        client, queue = warm(opened)
        port, nudged = queue._protocol.port, []
        send = port._nudge

        def nudge(*arguments):
            nudged.append(arguments)
            return send(*arguments)

        port._nudge = nudge

        def wait(punctual):
            work = port.wait("nobody publishes here", 0.05, punctual=punctual)
            return opened.runner.run(work) if shell_class is AsyncioShell else finish(work)

        assert wait(punctual=False) is False
        assert not nudged
        until(lambda: wait(punctual=True) is False and nudged)  # unless the server happened to look in that moment
        check(opened, client, queue)
        assert not client.connection_pool._in_use_connections


@pytest.mark.parametrize("shell_class", [BlockingShell, AsyncioShell], ids=["sync", "asyncio"])
def test_a_punctual_wait_manages_without_a_second_connection(start_server, shell_class):
    private = start_server()
    client_class = redis.asyncio.Redis if shell_class is AsyncioShell else redis.Redis
    with contextlib.closing(shell_class(private.port, client_class)) as opened:
        client, queue = warm(opened, max_connections=1)
        work = queue._protocol.port.wait("nobody publishes here", 0.05, punctual=True)
        assert (opened.runner.run(work) if shell_class is AsyncioShell else finish(work)) is False
        check(opened, client, queue)


class ClosedMeanwhile:
    """A socket that another thread closes before we wait, and whose number another socket has by then."""

    def __init__(self, other):
        self._numbers = [other.fileno(), -1]

    def fileno(self):
        return self._numbers.pop(0)


def test_a_wait_on_a_socket_that_was_closed_before_it_began_ends():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(redis.ConnectionError, match="closed this connection"):
        closed: Any = ClosedMeanwhile(ours)
        _wait(closed, select.POLLIN, float("inf"))


@pytest.mark.promise(
    "`client.close()` in another thread is a lost connection to a call that is under way, which is retried."
)
def test_a_connection_that_is_closed_while_it_is_taken_out_of_its_pool_is_a_lost_one(server, truth, caplog):
    """Between two steps of ours, the socket loses its number."""

    class ClosingParser:
        """Closes the connection when somebody looks at its parser, as another thread may do at this moment."""

        def __init__(self, connection):
            self.__dict__.update(connection=connection, parser=connection._parser)

        def __getattr__(self, name):
            value = getattr(self.parser, name)
            if name == "_buffer":  # of redis-py's own parser, which forgets what is in it
                value = SimpleNamespace(_buffer=value._buffer)
            self.connection._parser = self.parser
            self.connection.disconnect()
            return value

    with redis.Redis(port=server.port) as client, caplog.at_level(logging.WARNING):
        queue = RedisMessageQueue("faults", client=client)
        assert queue.publish("a") is True
        (connection,) = client.connection_pool._available_connections
        del connection._rmq_open_socket  # as if we had not used it yet
        connection._parser = ClosingParser(connection)
        assert queue.publish("b") is True
    assert RedisMessageQueue("faults", client=truth.client).stats().pending == 2
    (record,) = caplog.records
    assert record.getMessage().startswith("faults: publish failed (ConnectionError, ")
