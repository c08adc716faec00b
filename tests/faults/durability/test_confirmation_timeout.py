"""A confirmation keeps to its timeout while connections break."""

import time

import pytest
import redis
import redis.asyncio

from redis_message_queue import (
    RetryBudgetExhaustedError,
)
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.durability.replicas import HASTY, PATIENT, every_way, lacking, payloads, publish, repeat, unconfirmed
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE

pytestmark = pytest.mark.topic("Durability")


def test_a_confirmation_may_take_longer_than_the_client_listens_for_an_answer(family, shell, proxy):
    """It is asked for again and again, each time for less than that."""
    queue = shell.queue(shell.client(socket_timeout=1.0), gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: proxy.seen["WAIT"] >= 3)
        assert not publishing.done()
    assert publishing.result(LIMIT_SECONDS) is True
    assert payloads(family.primary) == [b"message"]


def test_no_question_outlasts_the_patience_of_its_client(family, shell):
    """The last answer is what the replicas have, and not that the client has stopped listening."""
    queue = shell.queue(shell.client(socket_timeout=0.25), gateway=HASTY | {"confirm_timeout_seconds": 0.4})
    with family.stopped():
        error = lacking(shell, queue, "0 of 1 replicas have it")
    assert error.__cause__ is None
    assert payloads(family.primary) == [b"message"]


@every_way
@pytest.mark.parametrize("fault", [CUT_BEFORE, CUT_AFTER, BLACK_HOLE], ids=str)
def test_a_connection_that_breaks_while_confirming_is_retried(family, shell, proxy, fault):
    """Or answers nothing; the time of the confirmation is not over, and the question is sent again."""
    queue = shell.queue(shell.client(socket_timeout=0.2), gateway=PATIENT)
    proxy.meet("WAIT", fault, fault)
    assert publish(shell, queue) is True
    assert proxy.seen["WAIT"] >= 3
    assert payloads(family.primary) == [b"message"]


@every_way
@pytest.mark.parametrize("fault", [CUT_BEFORE, CUT_AFTER, BLACK_HOLE], ids=str)
def test_connections_that_keep_breaking_use_up_the_time(family, shell, proxy, fault):
    """The retry budget is far longer than the moment that the confirmation has."""
    queue = shell.queue(shell.client(socket_timeout=0.05), gateway=HASTY | {"retry_budget_seconds": 900})
    proxy.always("WAIT", fault)
    started = time.monotonic()
    error = unconfirmed(shell, queue)
    assert time.monotonic() - started < LIMIT_SECONDS
    assert isinstance(error.__cause__, RetryBudgetExhaustedError)
    proxy.relent()
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_a_server_that_refuses_writes_for_a_moment_is_retried(family, shell, proxy):
    """NOREPLICAS is an answer; as with a broken connection, the time of the confirmation is not over."""
    queue = shell.queue(shell.client(socket_timeout=0.25), gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: family.blocked() == 1)
        asked = proxy.seen["WAIT"]
        with family.configured(family.primary, min_replicas_to_write=3):
            proxy.cut_all()  # the question is asked anew, and refused
            until(lambda: proxy.seen["WAIT"] >= asked + 3 or publishing.done())
    assert publishing.result(LIMIT_SECONDS) is True
    assert payloads(family.primary) == [b"message"]


def test_a_user_who_may_not_wait_gets_the_reason(family, shell):
    """The cause is the server's own word; what was published can be repeated when the rule has changed."""
    family.redis.execute_command("ACL", "SETUSER", "hurried", "on", ">pw", "~*", "&*", "+@all", "-wait")
    try:
        queue = shell.queue(shell.client(username="hurried", password="pw"), gateway=PATIENT)
        error = unconfirmed(shell, queue)
        assert isinstance(error.__cause__, redis.exceptions.NoPermissionError)
        family.redis.execute_command("ACL", "SETUSER", "hurried", "+wait")
        assert repeat(shell, queue, error) is True
        assert payloads(family.primary) == [b"message"]
    finally:
        family.redis.execute_command("ACL", "DELUSER", "hurried")
