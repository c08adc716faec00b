"""The path that packs commands by hand leaves the user's connections in order, as redis-py does."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_message_queue.asyncio.direct_pool import _tap_of
from tests.faults.proxy import delayed
from tests.faults.shells import AsyncioShell, BlockingShell
from tests.faults.stepping import CONNECTIONS_OF_REDIS_PY, Cancellation, CtrlC

pytestmark = pytest.mark.topic("Connections and clients")


STEPS = [
    ("send_packed_command", "before"),
    ("send_packed_command", "after"),
    ("read_response", "before"),
    ("read_response", "after"),
]
KEYS = 20

every_step = pytest.mark.parametrize(("method", "side"), STEPS, ids=["send", "sent", "read", "answered"])
every_pool = pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])


@pytest.fixture
def keys_of_the_user(truth):
    """The value of each key is its own name."""
    truth.client.mset({f"key {number}": f"value {number}" for number in range(KEYS)})


def pool_of(module, server, pool_class, **options):
    """Two connections: after one leak one is left, after two none."""
    if pool_class == "BlockingConnectionPool":
        options["timeout"] = 1
    return getattr(module, pool_class)(host="127.0.0.1", port=server.port, max_connections=2, **options)


# Interruptions at one step


@pytest.fixture(params=["sync", "asyncio"])
def packed(request, server, truth):
    """The sync and the async queue that pack commands by hand, without a proxy."""
    if request.param == "sync":
        shell = BlockingShell(server.port, redis.Redis)
    else:
        shell = AsyncioShell(server.port, redis.asyncio.Redis)
    yield shell
    shell.close()


def interrupted_call(shell, client, method, side, error):
    """Make one step of the next call raise once, before or after it is done: in the direct path, or in redis-py."""

    def tamper(connection):
        if "Blocking" not in type(client.connection_pool).__name__:
            if isinstance(shell, AsyncioShell):
                tamper_with_tap(_tap_of(connection), method, side, error)
            else:
                TamperedSocket.take_over(connection, SOCKET_METHODS[method], side, error)
            return
        original = getattr(connection, method)

        def blocking(*arguments, **options):
            delattr(connection, method)
            if side == "after":
                original(*arguments, **options)
            raise error

        async def suspending(*arguments, **options):
            delattr(connection, method)
            if side == "after":
                await original(*arguments, **options)
            raise error

        setattr(connection, method, suspending if isinstance(shell, AsyncioShell) else blocking)

    return tamper


SOCKET_METHODS = {"send_packed_command": ("send", "sendall"), "read_response": ("recv",)}


class TamperedSocket(socket.socket):
    """The socket of a connection, which raises once when it sends or reads."""

    __module__ = "socket"  # the direct path uses no other sockets
    fault: Any = ((), "", None)

    @classmethod
    def take_over(cls, connection, methods, side, error):
        timeout = connection._sock.gettimeout()
        taken = cls(fileno=connection._sock.detach())
        taken.settimeout(timeout)
        taken.fault = (methods, side, error)
        connection._sock = connection._parser._sock = taken
        buffer = getattr(connection._parser, "_buffer", None)
        if hasattr(buffer, "_sock"):
            buffer._sock = taken

    def send(self, *arguments):
        return self._step("send", *arguments)

    def sendall(self, *arguments):
        return self._step("sendall", *arguments)

    def recv(self, *arguments):
        return self._step("recv", *arguments)

    def _step(self, name, *arguments):
        methods, side, error = self.fault
        if name not in methods or self.gettimeout() == 0:  # redis-py looks for unread bytes without waiting
            return getattr(super(), name)(*arguments)
        self.fault = ((), "", None)
        if side == "after":
            getattr(super(), name)(*arguments)
        raise error


def tamper_with_tap(tap, method, side, error):
    """The same for the part of the async queue that sends a command and takes its reply."""
    original = tap.send

    def send(*arguments):
        del tap.send
        if (method, side) == ("send_packed_command", "before"):
            raise error
        reply = original(*arguments)
        if (method, side) == ("send_packed_command", "after"):
            raise error
        return reading(reply)

    async def reading(reply):
        if side == "after":
            await reply
        raise error

    tap.send = send


def tamper_with_idle_connection(shell, client, tamper):
    """The pool hands out its last connection first: the next caller will get this one."""
    pool = client.connection_pool
    if isinstance(shell, AsyncioShell):

        async def acquire_slot():
            connection = await pool.get_connection()
            tamper(connection)
            await pool.release(connection)

        shell.runner.run(acquire_slot())
    else:
        connection = pool.get_connection()
        tamper(connection)
        pool.release(connection)


def check_answers(shell, client, count=KEYS):
    for number in range(count):
        assert shell.command(client, "GET", f"key {number}") == b"value %d" % number


def check_that_none_leaked(shell, client):
    """Both connections of the pool can be used at the same time."""
    pool = client.connection_pool
    if isinstance(shell, AsyncioShell):

        async def take_two():
            taken = [await pool.get_connection(), await pool.get_connection()]
            for connection in taken:
                await pool.release(connection)

        shell.runner.run(take_two())
    else:
        taken = [pool.get_connection(), pool.get_connection()]
        for connection in taken:
            pool.release(connection)


@pytest.mark.promise("An aborted call never leaves its reply on a connection for another call.")
@every_pool
@every_step
@pytest.mark.parametrize("verb", ["publish", "process"])
def test_an_interrupted_call_leaves_no_reply_behind(
    packed, server, truth, keys_of_the_user, pool_class, method, side, verb
):
    """The user's next command on the same pool gets its own reply, and no connection is lost."""
    module = redis.asyncio if isinstance(packed, AsyncioShell) else redis
    client = packed.client(connection_pool=pool_of(module, server, pool_class))
    queue = packed.queue(client)
    assert queue._protocol.port._packs_by_hand
    error = asyncio.CancelledError if module is redis.asyncio else KeyboardInterrupt
    for _ in range(3):  # more often than there are connections
        packed.publish(queue, "message")
        tamper_with_idle_connection(packed, client, interrupted_call(packed, client, method, side, error))
        with pytest.raises(error):
            if verb == "publish":
                packed.publish(queue, "message")
            else:
                packed.process(queue)
        check_answers(packed, client, 5)
        check_that_none_leaked(packed, client)
        while packed.process(queue) is not None:
            pass
        assert truth.is_empty
    check_answers(packed, client)


@pytest.mark.promise("An aborted call never leaves its reply on a connection for another call.")
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, MemoryError, asyncio.CancelledError])
def test_any_exception_during_a_call_leaves_no_reply_behind(packed, server, truth, keys_of_the_user, error):
    if isinstance(packed, AsyncioShell) and error in (SystemExit, GeneratorExit):
        error = asyncio.InvalidStateError  # a loop does not survive the other two
    module = redis.asyncio if isinstance(packed, AsyncioShell) else redis
    client = packed.client(connection_pool=pool_of(module, server, "ConnectionPool"))
    queue = packed.queue(client)
    packed.publish(queue, "message")
    for method, side in STEPS:
        tamper_with_idle_connection(packed, client, interrupted_call(packed, client, method, side, error))
        with pytest.raises(error):
            packed.process(queue)
        check_answers(packed, client, 5)
        check_that_none_leaked(packed, client)
    assert packed.process(queue) == b"message"
    assert truth.is_empty


# Interruptions at every moment


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("protocol", [2, 3])
def test_ctrl_c_at_every_moment_of_a_publish_leaves_no_reply_behind(server, truth, keys_of_the_user, protocol):
    shell = BlockingShell(server.port, redis.Redis)
    with contextlib.closing(shell):
        client = shell.client(protocol=protocol)
        queue = shell.queue(client)
        assert queue.publish("warm") is True
        moment, came = 0, True
        while came:
            moment += 1
            with CtrlC(moment) as interruption:
                queue.publish("message")
            came = interruption.came
            check_answers(shell, client, 2)
        assert moment > 20
        assert 1 <= truth.pending <= moment + 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # redis-py's, of a socket that was just opened
def test_ctrl_c_while_connecting_leaves_no_half_open_connection(server, truth, keys_of_the_user):
    """redis-py returns a connection with an interrupted handshake and unread replies to the pool: ours must not."""
    shell = BlockingShell(server.port, redis.Redis)
    with contextlib.closing(shell):
        moment, came = 1, True
        while came:
            client = shell.client()
            queue = shell.queue(client)
            with CtrlC(moment, CONNECTIONS_OF_REDIS_PY) as interruption:
                queue.publish("message")
            came = interruption.came
            check_answers(shell, client, 3)
            client.close()
            moment += 4  # of about 400: those that spoil a connection come in runs of four and more
        assert moment > 100


# Cancellations at every await


@pytest.mark.promise("An aborted call never leaves its reply on a connection for another call.")
@pytest.mark.parametrize(
    ("times", "pool_class"),
    [
        pytest.param(1, "ConnectionPool", id="once-ConnectionPool", marks=pytest.mark.in_full),
        pytest.param(1, "BlockingConnectionPool", id="once-BlockingConnectionPool"),
        pytest.param(2, "ConnectionPool", id="and again at once-ConnectionPool"),
        pytest.param(2, "BlockingConnectionPool", id="and again-BlockingConnectionPool", marks=pytest.mark.in_full),
    ],
)
def test_cancelling_a_call_at_every_await_leaves_no_reply_behind(proxy, truth, keys_of_the_user, pool_class, times):
    """Even while connecting, and while the first cancellation is being handled."""
    proxy.always("EVALSHA", delayed(0.01))  # so that no reply is there before it is awaited

    async def cancel_everywhere(verb, connected):
        awaits = 0
        while True:
            awaits += 1
            pool = pool_of(redis.asyncio, proxy, pool_class)
            client = redis.asyncio.Redis(connection_pool=pool)
            queue = shell.queue(client)
            if connected:
                await client.ping()
            work = queue.publish("message") if verb == "publish" else shell.processing(queue)
            cancellation = Cancellation(awaits, awaits + times - 1)
            task = asyncio.ensure_future(cancellation.of(work))
            await asyncio.wait({task})
            for number in range(5):
                assert await client.get(f"key {number}") == b"value %d" % number
            taken = [await pool.get_connection(), await pool.get_connection()]
            for connection in taken:
                await pool.release(connection)
            await pool.disconnect()
            if not cancellation.came:
                task.result()
                return awaits - 1

    shell = AsyncioShell(proxy.port, redis.asyncio.Redis)
    with contextlib.closing(shell):
        for verb in ("publish", "process"):
            assert shell.runner.run(cancel_everywhere(verb, connected=True)) >= 1
            assert shell.runner.run(cancel_everywhere(verb, connected=False)) >= 3
