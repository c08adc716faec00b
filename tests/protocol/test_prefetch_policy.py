"""How far ahead of its handlers a loop may claim."""

import logging
import math

import pytest

from redis_message_queue.protocol.loop.prefetch_policy import PrefetchPolicy


def policy(size=100, workers=1, lease=10.0, has_heartbeat=False, in_batches=False):
    return PrefetchPolicy("orders", size, workers, lease=lease, has_heartbeat=has_heartbeat, in_batches=in_batches)


def size_of(one, *, is_careful=False):
    return one.claim_size(is_careful=is_careful)


def test_what_nobody_has_seen_yet_is_claimed_as_asked():
    assert size_of(policy()) == 100


@pytest.mark.parametrize(("workers", "expected"), [(1, 7), (4, 28), (50, 100)])
def test_slow_handlers_make_claims_as_small_as_can_be_begun_in_time(workers, expected):
    one = policy(workers=workers)
    one.handled_in(1.0)
    assert size_of(one) == expected


@pytest.mark.parametrize("seconds", [5.0, 10.0, 100.0])
def test_a_handler_that_takes_as_long_as_a_lease_still_gets_messages(seconds):
    one = policy()
    one.handled_in(seconds)
    assert size_of(one) == 1
    assert one.reserve == 5.0  # a message that was just claimed is begun


@pytest.mark.parametrize("options", [{"has_heartbeat": True}, {"lease": None}, {"in_batches": True}], ids=str)
def test_time_does_not_matter_where_leases_are_renewed_or_lists_are_handled(options):
    one = policy(**options)
    one.handled_in(1.0)
    assert size_of(one) == 100


def test_a_slow_beginning_is_forgotten():
    one = policy()
    one.handled_in(4.0)
    assert size_of(one) == 1
    for _ in range(30):
        one.handled_in(0.001)
    assert size_of(one) == 100


def test_after_a_redelivered_message_claims_are_single_and_then_grow():
    one = policy(size=10)
    one.after_claim(redelivered=True)
    sizes = []
    for _ in range(6):
        sizes.append(size_of(one))
        one.after_claim(redelivered=False)
    assert sizes == [1, 2, 4, 8, 10, 10]
    assert size_of(one, is_careful=True) == 1


@pytest.mark.parametrize(
    ("running", "workers", "reached"),
    [
        (0.0, 1, 6),  # nothing is known: whatever still has a quarter of its lease
        (0.9, 1, 6),
        (2.0, 1, 3),  # the third would begin 4 s from now, with half of its lease
        (2.0, 2, 6),
        (7.6, 1, 0),  # as long as the lease is safe
    ],
)
def test_what_will_not_be_reached_is_known_from_what_runs(running, workers, reached):
    one = policy(workers=workers)
    assert one.reachable([10.0 - running] * 6, running) == reached


def test_a_list_may_fill_for_nearly_as_long_as_its_first_lease_lasts():
    assert policy(in_batches=True).longest_wait(10.0) == 9.0
    assert policy(in_batches=True, has_heartbeat=True).longest_wait(1.0) == math.inf


@pytest.mark.parametrize(
    ("options", "enough", "too_much"),
    [({}, 0.1, 0.11), ({"workers": 10}, 1.0, 1.1), ({"size": 1}, 10.0, 10.1), ({"in_batches": True}, 10.0, 10.1)],
    ids=str,
)
def test_it_warns_once_when_handlers_are_too_slow_for_what_is_claimed(options, enough, too_much, caplog):
    one = policy(**options)
    with caplog.at_level(logging.WARNING, "redis_message_queue"):
        one.handled_in(enough)
        assert caplog.records == []
        for _ in range(20):
            one.handled_in(too_much)
    (line,) = caplog.messages
    assert line.startswith("orders: ") and "renew_leases=False" in line


@pytest.mark.parametrize(("lease", "seconds"), [(None, 0.5), (300.0, 0.5), (0.4, 0.1)])
def test_an_ack_waits_for_half_a_second_and_never_for_long_beside_a_short_lease(lease, seconds):
    assert policy(lease=lease).flush_seconds == seconds
