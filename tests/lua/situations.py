"""Situations that matter: each function prepares one, and gives back the call that is to be made in it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from redis_message_queue.scripts import all_names
from tests.lua.scripts_runner import HOUR_US, KEYS, ON_WATCH, WOKEN, Caller, fresh_id

Call = Callable[[], Any]
Situation = Callable[[Caller], Call]


def publish(caller: Caller) -> Call:
    return partial(caller.publish, b"first")


def publish_with_a_key(caller: Caller) -> Call:
    return partial(caller.publish, b"first", marker="a key")


def publish_with_a_key_where_the_oldest_may_be_dropped(caller: Caller) -> Call:
    caller.settings.limit, caller.settings.overload = 5, "drop"
    return partial(caller.publish, b"first", marker="a key")


def publish_behind_others(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(caller.publish, b"third", marker="a key")


def publish_a_duplicate(caller: Caller) -> Call:
    caller.publish(b"first", marker="a key")
    return partial(caller.publish, b"second", marker="a key")


def publish_into_a_full_line(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    caller.settings.limit = 2
    return partial(caller.publish, b"third")


def publish_and_drop(caller: Caller) -> Call:
    caller.give_back(caller.hold(b"first"))
    caller.publish_all([b"second", b"third"])
    caller.settings.limit, caller.settings.overload = 2, "drop"
    return partial(caller.publish, b"fourth")


def claim_the_usual_way(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return caller.claim


def claim_the_usual_way_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_the_usual_way(caller)


def claim_when_woken(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    caller.hush()
    return partial(caller.claim, woken=WOKEN)


def claim_from_watch(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.claim(slice_us=2 * HOUR_US)
    caller.publish_all([b"second", b"third"])
    caller.hush()
    return partial(caller.claim, slice_us=2 * HOUR_US, woken=ON_WATCH)


def claim_from_the_line(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    return partial(caller.claim, 2)


def claim_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_from_the_line(caller)


def claim_in_vain(caller: Caller) -> Call:
    return caller.claim


def claim_in_vain_beside_a_lease(caller: Caller) -> Call:
    caller.hold(b"first")
    return partial(caller.claim, slice_us=2 * HOUR_US)


def claim_again(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return partial(caller.claim, 2)


def claim_both_kinds(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.publish(b"second")
    caller.expire()
    return partial(caller.claim, 2)


def claim_past_foreign_values(caller: Caller) -> Call:
    caller.client.rpush(KEYS.pending, b"foreign", b"strange")
    caller.publish(b"first")
    return caller.claim


def claim_nothing_but_foreign_values(caller: Caller) -> Call:
    caller.client.rpush(KEYS.pending, b"foreign", b"strange")
    return caller.claim


def claim_past_expired_dead_letters(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.hold(b"first", b"second")
    caller.publish(b"third")
    caller.expire()
    return caller.claim


def claim_nothing_but_expired_dead_letters(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.hold(b"first", b"second")
    caller.expire()
    return caller.claim


def claim_past_returned_dead_letters(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.give_back(caller.hold(b"first", b"second"))
    caller.publish(b"third")
    return caller.claim


def claim_nothing_but_returned_dead_letters(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.give_back(caller.hold(b"first", b"second"))
    return caller.claim


def claim_nothing_but_returned_dead_letters_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_nothing_but_returned_dead_letters(caller)


def claim_past_a_lease_without_a_body(caller: Caller) -> Call:
    caller.client.zadd(KEYS.leases, {fresh_id(): 1})
    caller.publish(b"first")
    return caller.claim


def claim_nothing_but_a_lease_without_a_body(caller: Caller) -> Call:
    caller.client.zadd(KEYS.leases, {fresh_id(): 1})
    return caller.claim


def claim_everything_at_once(caller: Caller) -> Call:
    """A message over its limit, one under it, foreign bytes, and one that was never delivered."""
    caller.settings.most = 2
    caller.hold(b"over the limit")
    caller.expire()
    caller.claim()
    caller.hold(b"under the limit")
    caller.expire()
    caller.client.rpush(KEYS.pending, b"foreign")
    caller.publish(b"never delivered")
    caller.hush()
    return partial(caller.claim, 10)


def settle_one(caller: Caller) -> Call:
    return partial(caller.settle, caller.hold(b"first"))


def settle_one_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return settle_one(caller)


def settle(caller: Caller) -> Call:
    return partial(caller.settle, caller.hold(b"first", b"second"))


def settle_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return settle(caller)


def settle_into_a_list(caller: Caller) -> Call:
    return partial(caller.settle, caller.hold(b"first", b"second"), kept=KEYS.completed, limit=10)


def settle_into_a_list_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return settle_into_a_list(caller)


def settle_what_was_delivered_twice(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return partial(caller.settle, caller.claim(2).taken, kept=KEYS.completed)


def settle_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first", b"second")
    caller.expire()
    caller.claim(2)
    return partial(caller.settle, stale, kept=KEYS.completed)


def settle_partly_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.settle, [*stale, *caller.hold(b"second")], kept=KEYS.completed)


def give_back(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    taken = caller.claim(2).taken
    caller.hush()
    return partial(caller.give_back, taken)


def give_back_forgiven(caller: Caller) -> Call:
    return partial(caller.give_back, caller.hold(b"first", b"second"), forgiven=True)


def give_back_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return give_back(caller)


def give_back_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.give_back, stale)


def renew(caller: Caller) -> Call:
    return partial(caller.renew, caller.hold(b"first", b"second"))


def renew_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.renew, stale)


def ring(caller: Caller) -> Call:
    return caller.ring


PUBLISHES: tuple[Situation, ...] = (
    publish,
    publish_with_a_key,
    publish_with_a_key_where_the_oldest_may_be_dropped,
    publish_behind_others,
    publish_a_duplicate,
    publish_into_a_full_line,
    publish_and_drop,
)
CLAIMS: tuple[Situation, ...] = (
    claim_the_usual_way,
    claim_the_usual_way_without_leases,
    claim_when_woken,
    claim_from_watch,
    claim_from_the_line,
    claim_without_leases,
    claim_in_vain,
    claim_in_vain_beside_a_lease,
    claim_again,
    claim_both_kinds,
    claim_past_foreign_values,
    claim_nothing_but_foreign_values,
    claim_past_expired_dead_letters,
    claim_nothing_but_expired_dead_letters,
    claim_past_returned_dead_letters,
    claim_nothing_but_returned_dead_letters,
    claim_nothing_but_returned_dead_letters_without_leases,
    claim_past_a_lease_without_a_body,
    claim_nothing_but_a_lease_without_a_body,
    claim_everything_at_once,
)
SETTLEMENTS: tuple[Situation, ...] = (
    settle_one,
    settle_one_without_leases,
    settle,
    settle_without_leases,
    settle_into_a_list,
    settle_into_a_list_without_leases,
    settle_what_was_delivered_twice,
    settle_in_vain,
    settle_partly_in_vain,
)
RETURNS: tuple[Situation, ...] = (give_back, give_back_forgiven, give_back_without_leases, give_back_in_vain)
RENEWALS: tuple[Situation, ...] = (renew, renew_in_vain)
NUMBERED = (*PUBLISHES, *CLAIMS, *SETTLEMENTS, *RETURNS)
EVERY = (*NUMBERED, *RENEWALS, ring)


def script_of(situation: Situation) -> str:
    """The script that a situation calls."""
    return next(name for name in all_names() if situation.__name__.startswith(name))


def title(situation: Any) -> str:
    """What a parametrized test calls it."""
    return situation.__name__.replace("_", " ") if callable(situation) else str(situation)
