"""A connection that breaks during a call neither duplicates nor loses the effect of the call."""

import pytest

from redis_message_queue import EventOperation, RedisMessageQueue
from tests.concurrency import beside, until
from tests.faults.proxy import CUT_AFTER, CUT_BEFORE, PASS

pytestmark = pytest.mark.topic("Retries of Redis calls")


# Every loss of two attempts in a row, for a caller's first call and for later ones.
CUTS = [
    (CUT_BEFORE,),
    (CUT_AFTER,),
    (CUT_BEFORE, CUT_AFTER),
    (CUT_AFTER, CUT_AFTER),
    (PASS, CUT_BEFORE, CUT_BEFORE),
    (PASS, PASS, CUT_AFTER, CUT_BEFORE),
]
every_cut = pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: ", ".join(map(str, cuts)))


def calls_of(cuts):
    """How many calls these cuts are for: one, plus one for each that passes."""
    return 1 + cuts.count(PASS)


def words(count):
    return [f"message {number}" for number in range(count)]


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
@every_cut
def test_a_publish_stores_one_message(proxy, truth, shell, cuts):
    queue = shell.queue()
    proxy.meet("publish", *cuts)
    for word in words(calls_of(cuts)):
        assert shell.publish(queue, word) is True
    assert truth.pending == calls_of(cuts)
    assert proxy.seen["publish"] == len(cuts) + 1


@pytest.mark.promise("A publish that is retried after a lost reply is not treated as its own duplicate.")
@every_cut
def test_a_repeated_deduplicated_publish_gets_its_first_reply(proxy, truth, shell, cuts):
    """The repetition of an executed publish is no duplicate of itself."""
    queue = shell.queue(deduplication=True)
    proxy.meet("publish", *cuts)
    for word in words(calls_of(cuts)):
        assert shell.publish(queue, word) is True
    assert truth.pending == calls_of(cuts)


@pytest.mark.promise("A publish that is retried after a lost reply is not treated as its own duplicate.")
@every_cut
def test_a_duplicate_stays_a_duplicate(proxy, truth, shell, cuts):
    queue = shell.queue(deduplication=True)
    for word in words(calls_of(cuts)):
        assert shell.publish(queue, word) is True
    proxy.meet("publish", *cuts)
    for word in words(calls_of(cuts)):
        assert shell.publish(queue, word) is False
    assert truth.pending == calls_of(cuts)


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
@every_cut
def test_a_claim_delivers_each_message_once(proxy, truth, shell, cuts):
    queue = shell.queue(enable_completed_queue=True)
    expected = words(calls_of(cuts))
    for word in expected:
        shell.publish(queue, word)
    counts = []
    proxy.meet("claim", *cuts)
    handled = [
        shell.process(queue, lambda _: counts.append(queue.current_message().delivery_count)).decode() for _ in expected
    ]
    assert handled == expected
    assert counts == [1] * len(expected)
    assert shell.process(queue) is None
    assert truth.is_empty
    assert len(truth.completed) == len(expected)


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
@every_cut
def test_an_ack_is_applied_once(proxy, truth, shell, cuts):
    events = []
    queue = shell.queue(enable_completed_queue=True, on_event=lambda event: events.append(event.operation))
    expected = words(calls_of(cuts))
    for word in expected:
        shell.publish(queue, word)
    proxy.meet("settle", *cuts)
    for word in expected:
        assert shell.process(queue) == word.encode()
    assert truth.completed == [word.encode() for word in expected]
    assert truth.is_empty
    assert events.count(EventOperation.ACK) == len(expected)
    assert EventOperation.STALE_LEASE_ACK not in events


@pytest.mark.promise("A publish, claim, ack, nack or renewal that is retried after a lost reply takes effect once.")
@every_cut
def test_a_failure_is_recorded_once(proxy, truth, shell, cuts):
    def fail(message):
        raise ValueError(message)

    events = []
    queue = shell.queue(enable_failed_queue=True, on_event=lambda event: events.append(event.operation))
    expected = words(calls_of(cuts))
    for word in expected:
        shell.publish(queue, word)
    proxy.meet("settle", *cuts)
    for word in expected:
        with pytest.raises(ValueError, match=word):
            shell.process(queue, fail)
    assert truth.failed == [word.encode() for word in expected]
    assert truth.is_empty
    assert events.count(EventOperation.NACK) == len(expected)
    assert EventOperation.STALE_LEASE_NACK not in events


@pytest.mark.promise("A lost renewal is retried within the lease without calling `on_heartbeat_failure`.")
@every_cut
def test_a_heartbeat_survives_the_cut(proxy, truth, shell, cuts):
    """The lease is renewed, and no loss is reported."""
    failures, deadlines, lost = [], [], []
    queue = shell.queue(
        gateway={"message_visibility_timeout_seconds": 20},
        heartbeat_interval_seconds=0.02,
        on_heartbeat_failure=lambda: failures.append("failed"),
        enable_completed_queue=True,
    )
    shell.publish(queue, "long work")
    proxy.meet("renew", *cuts)

    def note(_):
        deadlines.extend(truth.deadlines)

    def busy():
        lost.append(queue.current_message().lease_lost)
        return proxy.seen["renew"] < len(cuts) + 2 or truth.deadlines <= deadlines

    assert shell.process(queue, note, busy) == b"long work"
    assert failures == []
    assert not any(lost)
    assert truth.completed == [b"long work"]
    assert truth.is_empty


def test_a_cut_while_a_script_is_loaded_changes_nothing(proxy, truth, shell):
    """The first call on a new server is sent as EVALSHA, then as EVAL; the loss of either is repaired."""
    queue = shell.queue(enable_completed_queue=True)
    for cut in (CUT_BEFORE, CUT_AFTER):
        truth.client.script_flush()
        proxy.meet("EVAL", cut, cut, cut)
        assert shell.publish(queue, "message") is True
        assert truth.pending == 1
        assert shell.process(queue) == b"message"
        assert truth.is_empty
        proxy.relent()
    assert truth.completed == [b"message"] * 2


def test_a_cut_while_waiting_for_a_wakeup_has_no_effect(proxy, truth, shell):
    queue = shell.queue(gateway={"message_wait_interval_seconds": 10})
    proxy.meet("BLPOP", CUT_BEFORE, CUT_AFTER)

    def publish_late():
        until(lambda: proxy.seen["BLPOP"] >= 2)
        RedisMessageQueue("faults", client=truth.client).publish("late")

    with beside(publish_late):
        assert shell.process(queue) == b"late"
    assert truth.is_empty
