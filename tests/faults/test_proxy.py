"""The proxy itself: each fault is the one that it is called."""

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, STRAGGLE, delayed


@pytest.fixture
def through(proxy):
    """A client through the proxy that neither waits long nor repeats anything."""
    with redis.Redis(port=proxy.port, socket_timeout=0.3, retry=Retry(NoBackoff(), 0)) as opened:
        yield opened


def test_what_it_was_not_told_to_meet_passes(proxy, through, client):
    big = b"x" * 300_000
    assert through.set("key", big)
    assert through.get("key") == big == client.get("key")
    assert proxy.seen["SET"] == 1


def test_a_request_cut_before_is_not_executed(proxy, through, client):
    proxy.meet("INCRBY", CUT_BEFORE)
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert client.get("counter") is None
    assert through.incr("counter") == 1


def test_a_request_cut_after_was_executed(proxy, through, client):
    proxy.meet("INCRBY", PASS, CUT_AFTER)
    assert through.incr("counter") == 1
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert client.get("counter") == b"2"


def test_a_straggler_is_executed_when_it_is_let_through(proxy, through, client):
    proxy.meet("INCRBY", STRAGGLE)
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert client.get("counter") is None
    assert through.incr("counter") == 1
    assert proxy.let_stragglers_through() == [b":2\r\n"]
    assert client.get("counter") == b"2"


def test_a_delayed_answer_comes_after_the_client_has_gone(proxy, through, client):
    proxy.meet("INCRBY", delayed(0.6))
    with pytest.raises(redis.TimeoutError):
        through.incr("counter")
    assert client.get("counter") == b"1"


def test_a_black_hole_answers_nothing_and_executes_nothing(proxy, through, client):
    proxy.always("INCRBY", BLACK_HOLE)
    with pytest.raises(redis.TimeoutError):
        through.incr("counter")
    assert client.get("counter") is None
    proxy.relent()
    assert through.incr("counter") == 1


def test_a_script_goes_by_its_name(proxy, truth, shell):
    """Whichever way it was sent, and whether by digest or by source."""
    queue = shell.queue()
    truth.client.script_flush()
    assert shell.publish(queue, "first")
    assert shell.publish(queue, "second")
    assert proxy.seen["EVALSHA"] == 2
    assert proxy.seen["EVAL"] == 1
    assert proxy.seen["publish"] == 3


def test_both_ways_of_sending_are_tried(shell):
    """A plain client's commands are packed by hand; a subclass goes redis-py's way."""
    port = shell.queue()._protocol.port
    assert port._packs_by_hand is shell.packs_by_hand
