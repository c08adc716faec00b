"""While Redis is away, calls with a time limit end in time, and what they may have taken is found afterwards."""

import contextlib
import logging
import math
import time

import pytest
import redis
from redis.backoff import ConstantBackoff, NoBackoff

from redis_message_queue import RetryBudgetExhaustedError, client_port
from redis_message_queue.protocol import calls
from tests.faults.meanwhile import until
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE
from tests.faults.shells import WAYS, AsyncioShell

# A budget far beyond what any of these calls may take.
PATIENT = {"retry_budget_seconds": 120, "retry_max_delay_seconds": 0.2, "message_wait_interval_seconds": 0.3}
LISTENING_SECONDS = 0.5
# What a call may take beyond its limit on a busy machine, and far less than the budget or an endless wait.
SOON_SECONDS = 15.0


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """What takes 5 s by default takes half a second here, except where a test is about that."""
    if "as_it_is" not in request.fixturenames:
        monkeypatch.setattr(client_port, "LISTENING_SECONDS", LISTENING_SECONDS)
        monkeypatch.setattr(calls, "_FIRST_CONTACT_SECONDS", LISTENING_SECONDS)


@pytest.fixture
def as_it_is():
    """The real times."""


every_fault = pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE, CUT_AFTER], ids=str)


def drain(shell, queue, timeout):
    return shell.runner.run(queue.drain(timeout)) if isinstance(shell, AsyncioShell) else queue.drain(timeout)


def took(work):
    """What it gave, or the Redis error that it raised, and how long that took."""
    began = time.monotonic()
    try:
        outcome = work()
    except redis.RedisError as error:
        outcome = error
    return outcome, time.monotonic() - began


def client_of(shell, kind):
    """Clients as users make them."""
    if kind == "plain":
        return shell.client(socket_timeout=LISTENING_SECONDS)
    if kind == "repeating":  # as redis-py's own default, and slower
        retry = shell.retry_class(ConstantBackoff(1), 60)
        return shell.client(socket_timeout=LISTENING_SECONDS, retry=retry)
    return shell.client(socket_timeout=None, retry=shell.retry_class(ConstantBackoff(1), -1))


def outage(proxy, fault):
    """Everything that comes from now on meets the fault, connecting included."""
    for command in ("EVALSHA", "EVAL", "BLPOP", "HELLO", "CLIENT", "PING"):
        proxy.always(command, fault)
    if fault is not BLACK_HOLE:
        proxy.cut_all()


# Claims


@every_fault
@pytest.mark.parametrize("kind", ["plain", "repeating"])
def test_a_claim_whose_wait_is_over_does_not_sit_out_the_budget(proxy, truth, shell, fault, kind):
    """It ends in its wait and the time of one answer; the next one after the outage finds what it took."""
    queue = shell.queue(client_of(shell, kind), PATIENT)
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
    for message in (b"first", b"second"):
        assert shell.process(queue, lambda _: counts.append(queue.current_message().delivery_count)) == message
    assert counts == [1, 1]
    assert truth.is_empty


@pytest.mark.parametrize("kind", ["plain", "repeating", "endless"])
@pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE], ids=str)
def test_a_claim_ends_in_time_when_nothing_gets_through_at_all(proxy, truth, shell, fault, kind):
    """No script, no wait, no new connection; with a client that would listen and repeat for ever."""
    queue = shell.queue(client_of(shell, kind), PATIENT | {"message_wait_interval_seconds": 0})
    shell.publish(queue, "message")
    outage(proxy, fault)
    outcome, seconds = took(lambda: shell.process(queue))
    assert outcome is None
    assert seconds < SOON_SECONDS
    proxy.relent()
    assert shell.process(queue) == b"message"
    assert truth.is_empty


def test_an_outage_as_long_as_the_budget_is_an_error(proxy, truth, shell):
    """Claim by claim there is none, and when that has been so for the whole budget it is said."""
    queue = shell.queue(shell.client(socket_timeout=0.2), PATIENT | {"retry_budget_seconds": 1.5})
    shell.publish(queue, "message")
    proxy.always("claim", CUT_BEFORE)
    outcomes = []
    until(lambda: outcomes.append(took(lambda: shell.process(queue))[0]) or outcomes[-1] is not None)
    assert len(outcomes) > 1
    assert isinstance(outcomes[-1], RetryBudgetExhaustedError)
    proxy.relent()
    assert shell.process(queue) == b"message"
    assert truth.is_empty


def test_a_claim_that_ends_in_doubt_is_no_empty_queue(proxy, truth, shell):
    """Its events tell of the tries; nobody knows whether the queue is empty."""
    told = []
    queue = shell.queue(
        shell.client(socket_timeout=LISTENING_SECONDS),
        PATIENT,
        on_event=lambda event: told.append(str(event.operation)),
    )
    shell.publish(queue, "message")
    proxy.always("claim", CUT_BEFORE)
    assert shell.process(queue) is None
    assert set(told) == {"publish", "retry_attempt"}


# Draining


@every_fault
def test_a_drain_answers_in_time_and_finishes_after_the_outage(proxy, truth, shell, fault):
    queue = shell.queue(shell.client(socket_timeout=LISTENING_SECONDS), PATIENT)
    shell.publish(queue, "message")
    proxy.meet("claim", CUT_AFTER)
    proxy.always("claim", fault)
    assert shell.process(queue) is None
    for timeout in (0, 0.3):
        outcome, seconds = took(lambda timeout=timeout: drain(shell, queue, timeout))
        assert outcome is False
        assert seconds < SOON_SECONDS
    assert truth.processing == 1
    proxy.relent()
    assert drain(shell, queue, 0) is False  # it only looks
    assert drain(shell, queue, 30) is True
    assert (truth.pending, truth.processing) == (1, 0)
    assert drain(shell, queue, 0) is True


@pytest.mark.parametrize("kind", ["plain", "endless"])
def test_a_drain_ends_in_time_when_giving_back_is_not_answered(proxy, truth, shell, kind):
    """It has learnt what its claim took, and then Redis falls silent."""
    queue = shell.queue(client_of(shell, kind), PATIENT | {"message_wait_interval_seconds": 0})
    shell.publish(queue, "message")
    proxy.always("claim", CUT_AFTER)
    assert shell.process(queue) is None
    proxy.relent()
    proxy.always("give_back", BLACK_HOLE)
    outcome, seconds = took(lambda: drain(shell, queue, 0.3))
    assert outcome is False
    assert seconds < SOON_SECONDS
    proxy.relent()
    assert drain(shell, queue, 30) is True
    assert (truth.pending, truth.processing) == (1, 0)


# Without a socket_timeout


@pytest.mark.parametrize("command", ["publish", "settle"])
def test_a_client_without_a_timeout_does_not_hang_on_a_lost_answer(proxy, truth, shell, command):
    """The read ends, the call is sent again under its number, and counts once."""
    queue = shell.queue(client_of(shell, "endless"), PATIENT, enable_completed_queue=True)
    for name in ("publish", "claim", "settle"):
        if name == command:
            proxy.meet(name, BLACK_HOLE)
    (_, seconds) = took(lambda: shell.publish(queue, "message"))
    (handled, more) = took(lambda: shell.process(queue))
    assert handled == b"message"
    assert seconds + more < 2 * SOON_SECONDS
    assert truth.completed == [b"message"]
    assert truth.is_empty


def test_the_users_own_commands_keep_the_users_own_limits(proxy, truth, shell):
    """A blocking read of the user's, on the very connection that a queue has used, lasts as long as it likes."""
    client = shell.client(socket_timeout=None)
    queue = shell.queue(client, PATIENT)
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
def nobody(request, dead_port):
    opened = WAYS[request.param](dead_port)
    yield opened
    opened.close()


@pytest.mark.parametrize("work", ["publish", "process", "stats"])
def test_a_redis_that_was_never_reached_is_reported_soon(nobody, dead_port, work):
    """Whatever the budget is: one error with the address, and that nothing was sent."""
    client = nobody.client(username="someone", password="secret", retry=nobody.retry_class(ConstantBackoff(1), 60))
    queue = nobody.queue(client, {"retry_budget_seconds": 600})
    works = {
        "publish": lambda: nobody.publish(queue, "message"),
        "process": lambda: nobody.process(queue),
        "stats": lambda: nobody.runner.run(queue.stats()) if isinstance(nobody, AsyncioShell) else queue.stats(),
    }
    error, seconds = took(works[work])
    assert isinstance(error, RetryBudgetExhaustedError)
    assert f"redis at 127.0.0.1:{dead_port} could not be reached" in str(error)
    assert "nothing was sent" in str(error)
    assert "secret" not in str(error) and "someone" not in str(error)
    assert isinstance(error.__cause__, redis.ConnectionError)
    assert seconds < SOON_SECONDS


@pytest.mark.parametrize("nobody", ["sync-packed", "asyncio-ordinary"], indirect=True)
def test_the_first_contact_is_tried_for_five_seconds(nobody, as_it_is):
    error, seconds = took(lambda: nobody.publish(nobody.queue(gateway={"retry_budget_seconds": 600}), "message"))
    assert "nothing was sent" in str(error)
    assert 5 <= seconds < 5 + SOON_SECONDS


def test_a_shorter_budget_ends_the_first_contact_sooner(nobody):
    error, seconds = took(lambda: nobody.publish(nobody.queue(gateway={"retry_budget_seconds": 0.1}), "message"))
    assert isinstance(error, RetryBudgetExhaustedError)
    assert "nothing was sent" in str(error)
    assert seconds < SOON_SECONDS


def test_a_server_that_accepts_and_says_nothing_was_never_reached(proxy, shell):
    """Also with a client that would listen for ever."""
    outage(proxy, BLACK_HOLE)
    proxy.always("AUTH", BLACK_HOLE)
    queue = shell.queue(shell.client(socket_timeout=None, protocol=3), {"retry_budget_seconds": 600})
    error, seconds = took(lambda: shell.publish(queue, "message"))
    assert isinstance(error, RetryBudgetExhaustedError)
    assert "nothing was sent" in str(error)
    assert seconds < 5 + SOON_SECONDS


def test_a_redis_that_was_reached_once_has_the_whole_budget(proxy, truth, shell):
    """A publish that cannot be answered any more does not say that nothing was sent."""
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
    first, second = (record.getMessage() for record in caplog.records)
    begin = f"faults: publish failed (ConnectionError, redis at 127.0.0.1:{proxy.port}), retrying in 0.0"
    assert first.startswith(begin) and first.endswith(" s (attempt 1)")
    assert second.startswith(begin) and second.endswith(" s (attempt 2)")


# The client's own Retry


@pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER], ids=str)
def test_without_a_budget_the_clients_own_retry_works(proxy, truth, shell, cut):
    """Publish, claim and ack are repeated as often as the user told the client to, and count once."""
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


def test_without_a_budget_the_client_gives_up_when_it_was_told_to(proxy, truth, shell):
    client = shell.client(retry=shell.retry_class(NoBackoff(), 2))
    queue = shell.queue(client, {"retry_budget_seconds": 0})
    proxy.always("publish", CUT_BEFORE)
    with pytest.raises(redis.ConnectionError):
        shell.publish(queue, "message")
    assert proxy.seen["publish"] == 3


@pytest.mark.parametrize("way", WAYS)
def test_without_a_budget_the_errors_that_the_user_named_are_repeated(start_server, way):
    """retry_on_error, as redis-py understands it: here an error that the server sends."""
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


def test_with_a_budget_the_clients_own_retry_does_not_multiply_ours(proxy, truth, shell):
    """One place repeats: a pause of a minute in the client is never made."""
    client = shell.client(retry=shell.retry_class(ConstantBackoff(60), 3))
    queue = shell.queue(client)
    proxy.meet("publish", CUT_BEFORE, CUT_AFTER)
    outcome, seconds = took(lambda: shell.publish(queue, "message"))
    assert outcome is True
    assert seconds < SOON_SECONDS
    assert truth.pending == 1


def test_the_users_own_commands_are_repeated_as_before(proxy, truth, shell):
    """On a client that a queue with a budget uses too."""
    client = shell.client(retry=shell.retry_class(NoBackoff(), 2))
    shell.publish(shell.queue(client), "message")
    proxy.meet("GET", CUT_BEFORE, CUT_AFTER)
    assert shell.command(client, "GET", "nothing") is None
    assert proxy.seen["GET"] == 3
    assert client.get_retry() == shell.retry_class(NoBackoff(), 2)
    assert math.isfinite(shell.queue(client)._protocol.store.calls.keep_seconds)
