"""While Redis is unreachable, calls with a time limit end in time, and later calls recover their messages."""

import contextlib
import logging
import math
import re
import time

import pytest
import redis
from redis.backoff import ConstantBackoff, NoBackoff

from redis_message_queue import RetryBudgetExhaustedError
from redis_message_queue.protocol import calls
from redis_message_queue.redis_py import client_port
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE
from tests.faults.shells import WAYS, AsyncioShell, nothing

pytestmark = pytest.mark.topic("Retries of Redis calls")

# A budget far longer than any of these calls may take.
LONG_BUDGET = {"retry_budget_seconds": 120, "retry_max_delay_seconds": 0.05, "message_wait_interval_seconds": 0.02}
LISTENING_SECONDS = 0.1
# The tolerance of a busy machine, and far less than the budget or an endless wait.
SOON_SECONDS = 15.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A client without a timeout gets a reply within 5 s; here in a moment, which a busy machine may exceed."""
    monkeypatch.setattr(client_port, "REPLY_TIMEOUT_SECONDS", LISTENING_SECONDS)


@pytest.fixture
def impatient(monkeypatch):
    """A short first contact, for servers that cannot be reached at all: any other one must have its time."""
    assert calls._FIRST_CONTACT_SECONDS == 5.0  # which these tests would take each
    monkeypatch.setattr(calls, "_FIRST_CONTACT_SECONDS", LISTENING_SECONDS)


every_fault = pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE, CUT_AFTER], ids=str)


def drain(shell, queue, timeout):
    return shell.runner.run(queue.drain(timeout)) if isinstance(shell, AsyncioShell) else queue.drain(timeout)


def took(work):
    """The result or the Redis error, and how long the call took."""
    began = time.monotonic()
    try:
        outcome = work()
    except redis.RedisError as error:
        outcome = error
    return outcome, time.monotonic() - began


def next_message(shell, queue, handler=nothing):
    """Handle one message. On a busy machine a reply may come too late, and the claim after that recovers it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (payload := shell.process(queue, handler)) is None:
        assert time.monotonic() < deadline, "no message"
    return payload


def client_of(shell, kind):
    """Clients with the settings of users."""
    if kind == "plain":
        return shell.client(socket_timeout=LISTENING_SECONDS)
    if kind == "repeating":  # like redis-py's own default, and slower
        retry = shell.retry_class(ConstantBackoff(1), 60)
        return shell.client(socket_timeout=LISTENING_SECONDS, retry=retry)
    return shell.client(socket_timeout=None, retry=shell.retry_class(ConstantBackoff(1), -1))


def outage(proxy, fault):
    """Every request from now on gets the fault, even new connections."""
    for command in ("EVALSHA", "EVAL", "BLPOP", "HELLO", "CLIENT", "PING"):
        proxy.always(command, fault)
    if fault is not BLACK_HOLE:
        proxy.cut_all()


# Claims


@every_fault
def test_a_claim_whose_wait_is_over_does_not_use_up_the_budget(proxy, truth, shell, fault):
    """It ends after its wait and the time of one reply; the next claim after the outage recovers its message."""
    queue = shell.queue(client_of(shell, "repeating"), LONG_BUDGET)
    for message in ("first", "second"):
        shell.publish(queue, message)
    proxy.always("claim", fault)
    for _ in range(2):
        outcome, seconds = took(lambda: shell.process(queue))
        assert outcome is None
        assert seconds < SOON_SECONDS
    assert truth.processing == (1 if fault is CUT_AFTER else 0)
    proxy.relent()
    counts = []
    for expected in (b"first", b"second"):
        assert next_message(shell, queue, lambda _: counts.append(queue.current_message().delivery_count)) == expected
    assert counts == [1, 1]
    assert truth.is_empty


@pytest.mark.parametrize("kind", ["repeating", "endless"])
@pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE], ids=str)
def test_a_claim_ends_in_time_during_a_complete_outage(proxy, truth, shell, fault, kind):
    """No script, no wait, no new connection; with a client that would wait and repeat forever."""
    queue = shell.queue(client_of(shell, kind), LONG_BUDGET | {"message_wait_interval_seconds": 0})
    shell.publish(queue, "message")
    outage(proxy, fault)
    outcome, seconds = took(lambda: shell.process(queue))
    assert outcome is None
    assert seconds < SOON_SECONDS
    proxy.relent()
    assert next_message(shell, queue) == b"message"
    assert truth.is_empty


def test_an_outage_as_long_as_the_budget_raises(proxy, truth, shell):
    """Claims return nothing until the whole budget has passed since the first of them; then one raises."""
    queue = shell.queue(shell.client(socket_timeout=LISTENING_SECONDS), LONG_BUDGET | {"retry_budget_seconds": 0.3})
    shell.publish(queue, "message")
    proxy.always("claim", CUT_BEFORE)
    with pytest.raises(RetryBudgetExhaustedError):
        next_message(shell, queue)
    proxy.relent()
    until(lambda: took(lambda: shell.process(queue))[0] == b"message")  # a slow reply is part of the outage
    assert truth.is_empty


def test_an_unconfirmed_claim_is_not_reported_as_an_empty_queue(proxy, truth, shell):
    """Its events report the attempts; whether the queue is empty is unknown."""
    events = []
    queue = shell.queue(
        shell.client(socket_timeout=LISTENING_SECONDS),
        LONG_BUDGET,
        on_event=lambda event: events.append(str(event.operation)),
    )
    shell.publish(queue, "message")
    proxy.always("claim", CUT_BEFORE)
    assert shell.process(queue) is None
    assert set(events) == {"publish", "retry_attempt"}


# Draining


@every_fault
def test_a_drain_returns_in_time_and_succeeds_after_the_outage(proxy, truth, shell, fault):
    queue = shell.queue(shell.client(socket_timeout=LISTENING_SECONDS), LONG_BUDGET)
    shell.publish(queue, "message")
    proxy.meet("claim", CUT_AFTER)
    proxy.always("claim", fault)
    assert shell.process(queue) is None
    for timeout in (0, 0.1):
        outcome, seconds = took(lambda timeout=timeout: drain(shell, queue, timeout))
        assert outcome is False
        assert seconds < SOON_SECONDS
    assert truth.processing == 1
    proxy.relent()
    assert drain(shell, queue, 0) is False  # returns immediately
    assert drain(shell, queue, 30) is True
    assert (truth.pending, truth.processing) == (1, 0)
    assert drain(shell, queue, 0) is True


@pytest.mark.parametrize("kind", ["plain", "endless"])
def test_a_drain_ends_in_time_when_its_requeue_gets_no_reply(proxy, truth, shell, kind):
    """It has recovered its claim, and then Redis stops replying."""
    queue = shell.queue(client_of(shell, kind), LONG_BUDGET | {"message_wait_interval_seconds": 0})
    shell.publish(queue, "message")
    proxy.always("claim", CUT_AFTER)
    assert shell.process(queue) is None
    proxy.relent()
    proxy.always("requeue", BLACK_HOLE)
    outcome, seconds = took(lambda: drain(shell, queue, 0.1))
    assert outcome is False
    assert seconds < SOON_SECONDS
    proxy.relent()
    assert drain(shell, queue, 30) is True
    assert (truth.pending, truth.processing) == (1, 0)


# Without a socket_timeout


@pytest.mark.parametrize("command", ["publish", "settle"])
def test_a_client_without_a_timeout_does_not_hang_on_a_lost_reply(proxy, truth, shell, command):
    """The read ends, the call is repeated under its number, and counts once."""
    queue = shell.queue(client_of(shell, "endless"), LONG_BUDGET, enable_completed_queue=True)
    for name in ("publish", "claim", "settle"):
        if name == command:
            proxy.meet(name, BLACK_HOLE)
    (_, seconds) = took(lambda: shell.publish(queue, "message"))
    (handled, more) = took(lambda: next_message(shell, queue))
    assert handled == b"message"
    assert seconds + more < 2 * SOON_SECONDS
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_the_users_own_commands_keep_their_timeouts(proxy, truth, shell):
    """A blocking read of the user lasts as long as it should, on the same connection that a queue has used."""
    client = shell.client(socket_timeout=None)
    queue = shell.queue(client, LONG_BUDGET)
    shell.publish(queue, "message")
    pool = client.connection_pool
    made = [*getattr(pool, "_available_connections", ())]
    assert made and all(connection.socket_timeout is None for connection in made)
    assert shell.process(queue) == b"message"
    if not isinstance(shell, AsyncioShell):
        assert all(connection._sock.gettimeout() is None for connection in pool._available_connections)
    assert shell.command(client, "BLPOP", "nothing", "0.2") is None


# First contact


@pytest.fixture(params=WAYS)
def unreachable(request, dead_port, impatient):
    opened = WAYS[request.param](dead_port)
    yield opened
    opened.close()


@pytest.mark.parametrize("work", ["publish", "process", "stats"])
def test_a_server_that_was_never_reached_is_reported_soon(unreachable, dead_port, work):
    """For any budget: one error with the address, which says that nothing was sent."""
    client = unreachable.client(
        username="someone", password="secret", retry=unreachable.retry_class(ConstantBackoff(1), 60)
    )
    queue = unreachable.queue(client, {"retry_budget_seconds": 600})
    works = {
        "publish": lambda: unreachable.publish(queue, "message"),
        "process": lambda: unreachable.process(queue),
        "stats": lambda: (
            unreachable.runner.run(queue.stats()) if isinstance(unreachable, AsyncioShell) else queue.stats()
        ),
    }
    error, seconds = took(works[work])
    assert isinstance(error, RetryBudgetExhaustedError)
    assert f"redis at 127.0.0.1:{dead_port} could not be reached" in str(error)
    assert "nothing was sent" in str(error)
    assert "secret" not in str(error) and "someone" not in str(error)
    assert isinstance(error.__cause__, redis.ConnectionError)
    assert seconds < SOON_SECONDS


def test_a_shorter_budget_ends_the_first_contact_sooner(unreachable, monkeypatch):
    monkeypatch.setattr(calls, "_FIRST_CONTACT_SECONDS", 10 * SOON_SECONDS)
    error, seconds = took(
        lambda: unreachable.publish(unreachable.queue(gateway={"retry_budget_seconds": 0.1}), "message")
    )
    assert isinstance(error, RetryBudgetExhaustedError)
    assert "nothing was sent" in str(error)
    assert seconds < SOON_SECONDS


@pytest.mark.parametrize("timeout", [None, 4 * SOON_SECONDS])
def test_a_server_that_accepts_and_never_replies_counts_as_unreachable(proxy, shell, impatient, timeout):
    """Even with a client that would wait forever, or much longer than the first contact may take."""
    outage(proxy, BLACK_HOLE)
    proxy.always("AUTH", BLACK_HOLE)
    queue = shell.queue(shell.client(socket_timeout=timeout, protocol=3), {"retry_budget_seconds": 600})
    error, seconds = took(lambda: shell.publish(queue, "message"))
    assert isinstance(error, RetryBudgetExhaustedError)
    assert "nothing was sent" in str(error)
    assert seconds < SOON_SECONDS


def test_a_server_that_was_reached_once_gets_the_whole_budget(proxy, truth, shell):
    """A publish without a reply does not claim that nothing was sent."""
    queue = shell.queue(gateway={"retry_budget_seconds": 0.4})
    shell.publish(queue, "message")
    proxy.always("publish", CUT_AFTER)
    error, _ = took(lambda: shell.publish(queue, "another"))
    assert isinstance(error, RetryBudgetExhaustedError)
    assert "its outcome is unknown" in str(error)
    assert truth.pending == 2


def test_a_retry_is_logged_with_queue_address_pause_and_attempt(proxy, truth, shell, caplog):
    queue = shell.queue()
    proxy.meet("publish", CUT_BEFORE, CUT_BEFORE)
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        assert shell.publish(queue, "message") is True
    (first,) = (record.getMessage() for record in caplog.records)
    begin = f"faults: publish failed (ConnectionError, redis at 127.0.0.1:{proxy.port}), retrying in 0.0"
    assert first.startswith(begin) and first.endswith(" s (attempt 1)")


@pytest.mark.promise("While Redis is away, retries are logged once a second; one line says when it is back.")
def test_an_outage_is_logged_in_a_few_lines(proxy, truth, shell, caplog):
    """However many callers meet it, and however often they try; the next outage is told again."""
    queue = shell.queue(gateway={"retry_budget_seconds": 120, "retry_max_delay_seconds": 0.05}, partitions=3)
    shell.publish(queue, "before")
    for _ in range(2):
        proxy.always("publish", CUT_BEFORE)
        proxy.always("enqueue", CUT_BEFORE)
        with caplog.at_level(logging.WARNING, "redis_message_queue"):
            running = start(shell.publish_together, queue, list("abcdef"))
            until(lambda: "(attempt " in caplog.text)
            time.sleep(1.1)
            proxy.relent()
            assert running.result(timeout=LIMIT_SECONDS) == [True] * 6
        said = [record.getMessage() for record in caplog.records]
        (back,) = (line for line in said if "answers again" in line)
        pattern = rf"faults\S*: redis at 127.0.0.1:{proxy.port} answers again, after \d+\.\d s and \d+ failed attempts"
        assert re.fullmatch(pattern, back)
        assert len(said) <= 7, said  # of hundreds
        caplog.clear()
        time.sleep(1.1)  # a failure soon after the end would belong to this outage


# The client's own Retry


@pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=str)
def test_without_a_budget_the_clients_own_retry_works(proxy, truth, shell, cut):
    """Publish, claim and ack are repeated as often as the client is set to, and count once."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 3))
    queue = shell.queue(client, {"retry_budget_seconds": 0}, enable_completed_queue=True)
    for verb in ("publish", "claim", "settle"):
        proxy.meet(verb, cut, cut, cut)
    assert shell.publish(queue, "message") is True
    assert truth.pending == 1
    assert shell.process(queue) == b"message"
    assert truth.completed == [b"message"]
    assert truth.is_empty
    assert proxy.seen["publish"] == proxy.seen["claim"] == proxy.seen["settle"] == 4


def test_without_a_budget_the_client_gives_up_as_configured(proxy, truth, shell):
    client = shell.client(retry=shell.retry_class(NoBackoff(), 2))
    queue = shell.queue(client, {"retry_budget_seconds": 0})
    proxy.always("publish", CUT_BEFORE)
    with pytest.raises(redis.ConnectionError):
        shell.publish(queue, "message")
    assert proxy.seen["publish"] == 3


@pytest.mark.parametrize("way", WAYS)
def test_without_a_budget_retry_on_error_works(start_server, way):
    """As in redis-py; here an error that the server sends."""
    server, pauses = start_server(), []
    with server.client() as admin, contextlib.closing(WAYS[way](server.port)) as shell:

        class Counting(ConstantBackoff):
            def compute(self, failures):
                pauses.append(failures)
                if failures == 2:
                    admin.execute_command("REPLICAOF", "NO", "ONE")
                return 0

        client = shell.client(retry=shell.retry_class(Counting(0), 5), retry_on_error=[redis.ReadOnlyError])
        queue = shell.queue(client, {"retry_budget_seconds": 0})
        shell.publish(queue, "message")
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert shell.publish(queue, "another") is True
        assert pauses == [1, 2]


def test_with_a_budget_the_clients_own_retry_is_not_multiplied(proxy, truth, shell):
    """Only one place repeats: a pause of a minute in the client never happens."""
    client = shell.client(retry=shell.retry_class(ConstantBackoff(60), 3))
    queue = shell.queue(client)
    proxy.meet("publish", CUT_BEFORE, CUT_AFTER)
    outcome, seconds = took(lambda: shell.publish(queue, "message"))
    assert outcome is True
    assert seconds < SOON_SECONDS
    assert truth.pending == 1


def test_the_users_own_commands_are_retried_as_before(proxy, truth, shell):
    """On a client that a queue with a budget uses too."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 2))
    shell.publish(shell.queue(client), "message")
    proxy.meet("GET", CUT_BEFORE, CUT_AFTER)
    assert shell.command(client, "GET", "nothing") is None
    assert proxy.seen["GET"] == 3
    assert client.get_retry() == shell.retry_class(NoBackoff(), 2)
    assert math.isfinite(shell.queue(client)._protocol.store.calls.keep_seconds)
