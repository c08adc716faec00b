"""The proxy itself: each fault does what its name says."""

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.nemesis import CUT_SCRIPTS
from redis_message_queue import RedisMessageQueue
from tests.faults.proxy import ARRIVE_LATE, BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, delayed, our_scripts


@pytest.fixture
def through(proxy):
    """A client through the proxy with a short timeout and without retries."""
    with redis.Redis(port=proxy.port, socket_timeout=0.3, retry=Retry(NoBackoff(), 0)) as opened:
        yield opened


def test_requests_without_a_fault_pass(proxy, through, client):
    big = b"x" * 300_000
    assert through.set("key", big)
    assert through.get("key") == big == client.get("key")
    assert proxy.seen["SET"] == 1


def test_a_request_cut_before_the_server_is_not_executed(proxy, through, client):
    proxy.meet("INCRBY", CUT_BEFORE)
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert client.get("counter") is None
    assert through.incr("counter") == 1


def test_a_request_cut_after_the_server_was_executed(proxy, through, client):
    proxy.meet("INCRBY", PASS, CUT_AFTER)
    assert through.incr("counter") == 1
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert client.get("counter") == b"2"


def test_a_straggler_is_executed_when_it_is_let_through(proxy, through, client):
    proxy.meet("INCRBY", ARRIVE_LATE)
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert client.get("counter") is None
    assert through.incr("counter") == 1
    assert proxy.send_late_requests() == [b":2\r\n"]
    assert client.get("counter") == b"2"


def test_a_delayed_reply_comes_after_the_client_has_gone(proxy, through, client):
    proxy.meet("INCRBY", delayed(0.6))
    with pytest.raises(redis.TimeoutError):
        through.incr("counter")
    assert client.get("counter") == b"1"


def test_a_black_hole_neither_replies_nor_executes(proxy, through, client):
    proxy.always("INCRBY", BLACK_HOLE)
    with pytest.raises(redis.TimeoutError):
        through.incr("counter")
    assert client.get("counter") is None
    proxy.relent()
    assert through.incr("counter") == 1


def test_a_script_is_known_by_its_name(proxy, truth, shell):
    """Sent either way, by digest or by source."""
    queue = shell.queue()
    truth.client.script_flush()
    assert shell.publish(queue, "first")
    assert shell.publish(queue, "second")
    assert proxy.seen["EVALSHA"] == 2
    assert proxy.seen["EVAL"] == 1
    assert proxy.seen["publish"] == 3


def test_both_ways_of_sending_are_tried(shell):
    """Commands of a plain client are packed by hand; those of a subclass are sent by redis-py."""
    port = shell.queue()._protocol.port
    assert port._packs_by_hand is shell.packs_by_hand


@pytest.mark.parametrize("options", [{}, {"journal": True}, {"tenant_weights": {"acme": 2}}], ids=str)
def test_scripts_have_their_names_whatever_the_client_asks_for(proxy, through, options):
    """A client with a journal or weights sends copies of its own."""
    queue = RedisMessageQueue("proxied", client=through, **options)
    queue.publish("a")
    with queue.process_message():
        pass
    assert {"publish", "claim", "settle"} <= proxy.seen.keys()


def test_the_chaos_campaign_cuts_scripts_that_exist():
    assert set(CUT_SCRIPTS) <= set(our_scripts().values())
