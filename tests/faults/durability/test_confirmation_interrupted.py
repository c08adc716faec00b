"""An interrupted confirmation leaves no reply on a connection."""

import asyncio
import contextlib
import signal
import threading
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_message_queue import (
    PublishNotConfirmedError,
)
from tests.concurrency import LIMIT_SECONDS, beside, until
from tests.faults.durability.replicas import (
    HASTY,
    PATIENT,
    LoopShell,
    drain,
    payloads,
    publish,
    repeat,
    stored,
    unconfirmed,
)
from tests.faults.proxy import delayed
from tests.faults.shells import BlockingShell, OrdinaryAsyncioRedis, OrdinaryRedis
from tests.faults.stepping import CONNECTIONS_OF_REDIS_PY, Cancellation, CtrlC

pytestmark = pytest.mark.topic("Durability")


def check_answers(shell: BlockingShell, client: Any, count: int = 5) -> None:
    """The user's next commands get their own answers."""
    for number in range(count):
        asked = f"question {number}"
        assert shell.command(client, "ECHO", asked) == asked.encode()


@pytest.mark.parametrize("client_class", [redis.Redis, OrdinaryRedis], ids=["packed", "ordinary"])
def test_ctrl_c_while_replicas_are_waited_for_leaves_no_answer_behind(family, blocking, client_class):
    """A real SIGINT; the connection whose answer is still to come is not used again, and none is lost."""
    blocking.client_class = client_class
    client = blocking.client(max_connections=1)
    queue = blocking.queue(client, gateway=PATIENT)

    def interrupt(returned):
        until(lambda: family.blocked() == 1 or returned.is_set())
        if not returned.is_set():  # a publish that has not waited must not end the whole run
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with family.stopped():
        for number in range(1, 4):
            returned = threading.Event()
            with beside(interrupt, returned), pytest.raises(KeyboardInterrupt):
                queue.publish(f"message {number}")
                returned.set()
            check_answers(blocking, client)
            until(lambda: family.blocked() == 0)
            assert len(payloads(family.primary)) == number
    assert queue.publish("message 4") is True
    check_answers(blocking, client)
    assert payloads(family.primary) == [b"message %d" % number for number in range(1, 5)]
    assert queue.drain(LIMIT_SECONDS) is True


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("protocol", [2, 3])
def test_ctrl_c_at_every_moment_of_a_confirmed_publish_leaves_no_answer_behind(family, blocking, protocol):
    client = blocking.client(port=family.primary.port, protocol=protocol)
    queue = blocking.queue(client, gateway=PATIENT)
    assert queue.publish("warm") is True
    moment, came = protocol, True
    while came:
        with CtrlC(moment) as interruption:
            queue.publish("message")
        came = interruption.came
        check_answers(blocking, client, 2)
        moment += 4  # of some 650: those that spoil a connection come in rows of four and more
    assert moment > 200
    assert 1 <= len(stored(family.primary)) <= moment / 4 + 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # redis-py's, of a socket that was hardly open
def test_ctrl_c_while_connecting_to_ask_leaves_no_half_made_connection_behind(family, blocking):
    """redis-py puts a connection back whose handshake was interrupted, with answers unread: ours must not stay."""
    client = blocking.client(port=family.primary.port)
    queue = blocking.queue(client, gateway=HASTY)
    with family.stopped():
        error = unconfirmed(blocking, queue)
        moment, came = 1, True
        while came:
            client.connection_pool.disconnect()
            with CtrlC(moment, CONNECTIONS_OF_REDIS_PY) as interruption:
                error = unconfirmed(blocking, queue, repeat_of=error)
            came = interruption.came
            check_answers(blocking, client, 3)
            moment += 4  # of some 400: those that spoil a connection come in rows of four and more
    assert moment > 100
    assert repeat(blocking, queue, error) is True
    assert payloads(family.primary) == [b"message"]


@pytest.mark.parametrize("client_class", [redis.asyncio.Redis, OrdinaryAsyncioRedis], ids=["packed", "ordinary"])
def test_a_task_that_is_cancelled_while_replicas_are_waited_for_leaves_no_answer_behind(family, proxy, client_class):
    shell = LoopShell(proxy.port, client_class)
    client = shell.client(max_connections=1)
    queue = shell.queue(client, gateway=PATIENT)

    async def cancel_a_publish(message):
        task = asyncio.create_task(queue.publish(message))
        await asyncio.to_thread(until, lambda: family.blocked() == 1)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    with contextlib.closing(shell):
        with family.stopped():
            for number in range(1, 4):
                assert shell.runner.run(cancel_a_publish(f"message {number}")) is True
                check_answers(shell, client)
                until(lambda: family.blocked() == 0)
                assert len(payloads(family.primary)) == number
        assert publish(shell, queue, "message 4") is True
        check_answers(shell, client)
        assert payloads(family.primary) == [b"message %d" % number for number in range(1, 5)]
        assert drain(shell, queue, LIMIT_SECONDS) is True


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not yet connected"])
def test_cancelling_a_repetition_at_every_await_leaves_no_answer_behind(family, proxy, connected):
    """Nor a lost connection; and the error can be repeated as if nothing had happened."""
    shell = LoopShell(proxy.port, redis.asyncio.Redis)
    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=proxy.port, max_connections=2, timeout=1)
    client = shell.client(connection_pool=pool)
    queue = shell.queue(client, gateway=HASTY)

    async def cancel_everywhere(error):
        awaits = 0
        while True:
            awaits += 1
            await pool.disconnect()
            if connected:
                await client.ping()
            cancellation = Cancellation(awaits)
            task = asyncio.ensure_future(cancellation.of(queue.publish("message", repeat_of=error)))
            await asyncio.wait({task})
            for number in range(5):
                assert await client.echo(f"question {number}") == b"question %d" % number
            taken = [await pool.get_connection(), await pool.get_connection()]
            for connection in taken:
                await pool.release(connection)
            if not cancellation.came:
                assert isinstance(task.exception(), PublishNotConfirmedError)
                return awaits - 1

    with contextlib.closing(shell):
        with family.stopped():
            error = unconfirmed(shell, queue)
            proxy.always("EVAL", delayed(0.01))  # no answer is there before it is awaited
            assert shell.runner.run(cancel_everywhere(error)) >= (1 if connected else 3)
        proxy.relent()
        assert repeat(shell, queue, error) is True
        assert payloads(family.primary) == [b"message"]
