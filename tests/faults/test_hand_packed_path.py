"""The path that packs commands by hand treats the user's connections as well as redis-py does."""

import asyncio
import contextlib

import pytest
import redis
import redis.asyncio

from tests.faults.proxy import delayed
from tests.faults.shells import AsyncioShell, BlockingShell
from tests.faults.stepping import CONNECTIONS_OF_REDIS_PY, Cancellation, CtrlC

STEPS = [
    ("send_packed_command", "before"),
    ("send_packed_command", "after"),
    ("read_response", "before"),
    ("read_response", "after"),
]
KEYS = 200

every_step = pytest.mark.parametrize(("method", "side"), STEPS, ids=["send", "sent", "read", "answered"])
every_pool = pytest.mark.parametrize("pool_class", ["ConnectionPool", "BlockingConnectionPool"])


@pytest.fixture
def keys_of_the_user(truth):
    """Every key says which one it is."""
    truth.client.mset({f"key {number}": f"value {number}" for number in range(KEYS)})


def pool_of(module, server, pool_class, **options):
    """Two connections: one that leaked leaves one, and a second leak leaves none."""
    if pool_class == "BlockingConnectionPool":
        options["timeout"] = 1
    return getattr(module, pool_class)(host="127.0.0.1", port=server.port, max_connections=2, **options)


# Interrupted at a step


@pytest.fixture(params=["sync", "asyncio"])
def packed(request, server, truth):
    """The two queues that pack by hand, straight to the server."""
    if request.param == "sync":
        shell = BlockingShell(server.port, redis.Redis)
    else:
        shell = AsyncioShell(server.port, redis.asyncio.Redis)
    yield shell
    shell.close()


def interrupted_call(shell, method, side, error):
    """A method that behaves once as if it had been interrupted, before or after it did its work."""

    def tamper(connection):
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


def tamper_with_idle_connection(shell, client, tamper):
    """The pool gives its last connection first: the next caller will get this one."""
    pool = client.connection_pool
    if isinstance(shell, AsyncioShell):

        async def borrow():
            connection = await pool.get_connection()
            tamper(connection)
            await pool.release(connection)

        shell.runner.run(borrow())
    else:
        connection = pool.get_connection()
        tamper(connection)
        pool.release(connection)


def check_answers(shell, client, count=KEYS):
    for number in range(count):
        assert shell.command(client, "GET", f"key {number}") == b"value %d" % number


def check_that_none_leaked(shell, client):
    """Both connections of the pool can be had at the same time."""
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


@every_pool
@every_step
@pytest.mark.parametrize("verb", ["publish", "process"])
def test_an_interrupted_call_leaves_no_answer_behind(
    packed, server, truth, keys_of_the_user, pool_class, method, side, verb
):
    """The user's next command on the same pool gets its own answer, and no connection is lost."""
    module = redis.asyncio if isinstance(packed, AsyncioShell) else redis
    client = packed.client(connection_pool=pool_of(module, server, pool_class))
    queue = packed.queue(client)
    assert queue._protocol.port._packs_by_hand
    error = asyncio.CancelledError if module is redis.asyncio else KeyboardInterrupt
    for _ in range(3):  # more often than there are connections
        packed.publish(queue, "message")
        tamper_with_idle_connection(packed, client, interrupted_call(packed, method, side, error))
        with pytest.raises(error):
            if verb == "publish":
                packed.publish(queue, "message")
            else:
                packed.process(queue)
        check_answers(packed, client, 20)
        check_that_none_leaked(packed, client)
        while packed.process(queue) is not None:
            pass
        assert truth.is_empty
    check_answers(packed, client)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, MemoryError, asyncio.CancelledError])
def test_whatever_breaks_the_call_off_leaves_no_answer_behind(packed, server, truth, keys_of_the_user, error):
    if isinstance(packed, AsyncioShell) and error in (SystemExit, GeneratorExit):
        error = asyncio.InvalidStateError  # a loop does not survive the other two
    module = redis.asyncio if isinstance(packed, AsyncioShell) else redis
    client = packed.client(connection_pool=pool_of(module, server, "ConnectionPool"))
    queue = packed.queue(client)
    packed.publish(queue, "message")
    for method, side in STEPS:
        tamper_with_idle_connection(packed, client, interrupted_call(packed, method, side, error))
        with pytest.raises(error):
            packed.process(queue)
        check_answers(packed, client, 20)
        check_that_none_leaked(packed, client)
    assert packed.process(queue) == b"message"
    assert truth.is_empty


# Interrupted at every moment


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("protocol", [2, 3])
def test_ctrl_c_at_every_moment_of_a_publish_leaves_no_answer_behind(server, truth, keys_of_the_user, protocol):
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
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # redis-py's, of a socket that was hardly open
def test_ctrl_c_while_connecting_leaves_no_half_made_connection_behind(server, truth, keys_of_the_user):
    """redis-py puts a connection back whose handshake was interrupted, with answers unread: ours must not stay."""
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
            moment += 4  # of some 400: those that spoil a connection come in rows of four and more
        assert moment > 100


# Cancelled at every await


@every_pool
@pytest.mark.parametrize("times", [1, 2], ids=["once", "and again at once"])
def test_cancelling_a_call_at_every_await_leaves_no_answer_behind(proxy, truth, keys_of_the_user, pool_class, times):
    """Also while a connection is being made, and while the call is being broken off by the first cancellation."""
    proxy.always("EVALSHA", delayed(0.01))  # no answer is there before it is awaited

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
            for number in range(20):
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
