"""Situations that matter: each function prepares one, and returns the call to make in it."""

import hashlib
import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import HAS_ENTRY, HEADER_BYTES, TIME_AT
from redis_message_queue.stored.scripts import all_names
from tests.lua.scripts_runner import (
    HOUR_US,
    KEYS,
    TIMER_OWNER,
    WOKEN,
    Caller,
    New,
    Taken,
    chunk_ids,
    fresh_base,
    new_id,
)

Call = Callable[..., Any]
Situation = Callable[[Caller], Call]


def hold_and_let_come_back(caller: Caller, *payloads: bytes, tenant: str | None = "acme") -> tuple[Taken, ...]:
    """Their leases run out, and a claim that was after something else has given them back to their tenant."""
    held = caller.hold(*(payloads or (b"first", b"second")), tenant=tenant)
    caller.enqueue_for("zeta", b"somebody else's")
    caller.expire()
    assert caller.claim().payloads == [b"somebody else's"]
    assert caller.client.zcard(KEYS.expired(tenant or "")) == len(held)
    return held


def age(caller: Caller, line: str, microseconds: int = 2 * HOUR_US) -> None:
    """Everything in this line was published so much earlier."""
    for place, stored in enumerate(caller.client.lrange(line, 0, -1)):
        published = int.from_bytes(stored[TIME_AT:HEADER_BYTES], "big") - microseconds
        caller.client.lset(line, place, stored[:TIME_AT] + published.to_bytes(8, "big") + stored[HEADER_BYTES:])


def publish(caller: Caller) -> Call:
    return partial(caller.publish, b"first")


def publish_with_a_key(caller: Caller) -> Call:
    return partial(caller.publish, b"first", marker="a key")


def publish_behind_others(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(caller.publish, b"third", marker="a key")


def publish_a_duplicate(caller: Caller) -> Call:
    caller.publish(b"first", marker="a key")
    return partial(caller.publish, b"second", marker="a key")


def backfill(caller: Caller) -> Call:
    return partial(caller.backfill, b"first", New(b"second", b"acme"))


def backfill_behind_others(caller: Caller) -> Call:
    caller.publish(b"first")
    caller.backfill(b"second", after="1")
    return partial(caller.backfill, New(b"third", b"acme"), b"fourth", before="1", after="3")


def backfill_what_another_has_stored(caller: Caller) -> Call:
    caller.backfill(b"first", after="1")
    return partial(caller.backfill, b"first", b"second", after="2")


def backfill_into_a_full_line(caller: Caller) -> Call:
    caller.backfill(b"first", b"second", after="2")
    caller.settings.limit = 3
    return partial(caller.backfill, b"third", b"fourth", before="2", after="4")


def enqueue(caller: Caller) -> Call:
    return partial(caller.enqueue, b"first", b"second", form="bare")


def enqueue_what_is_ready(caller: Caller) -> Call:
    return partial(caller.enqueue, b"first", b"second")


def enqueue_in_full(caller: Caller) -> Call:
    return partial(caller.enqueue, b"first", b"second", form="full")


def enqueue_with_keys(caller: Caller) -> Call:
    return partial(caller.enqueue, New(b"first", marker="a key"), New(b"second", marker="another"), b"third")


def enqueue_behind_others(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(caller.enqueue, b"third", b"fourth")


def enqueue_duplicates(caller: Caller) -> Call:
    caller.publish(b"first", marker="a key")
    news = [New(b"second", marker="a key"), New(b"third", marker="fresh"), New(b"fourth", marker="fresh")]
    return partial(caller.enqueue, *news)


def enqueue_duplicates_in_full(caller: Caller) -> Call:
    return partial(enqueue_duplicates(caller), form="full")


def enqueue_nothing_but_duplicates(caller: Caller) -> Call:
    caller.publish(b"first", marker="a key")
    return partial(caller.enqueue, New(b"second", marker="a key"), New(b"third", marker="a key"))


def enqueue_into_a_full_line(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    caller.settings.limit = 3
    return partial(caller.enqueue, New(b"third", marker="a key"), b"fourth")


def enqueue_and_drop(caller: Caller) -> Call:
    caller.requeue(caller.hold(b"first"))
    caller.publish_all([b"second", b"third"])
    caller.settings.limit, caller.settings.overload = 3, "drop"
    return partial(caller.enqueue, b"fourth", b"fifth")


def enqueue_for_tenants(caller: Caller) -> Call:
    return partial(caller.enqueue, New(b"first", b"acme"), New(b"second", b"zeta"), b"third", New(b"fourth", b"acme"))


def enqueue_behind_others_of_a_tenant(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first")
    return partial(caller.enqueue, New(b"second", b"acme"))


def enqueue_into_the_full_line_of_a_tenant(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first", b"second")
    caller.settings.tenant_limit = 2
    return partial(caller.enqueue, New(b"third", b"zeta"), New(b"fourth", b"acme"))


def enqueue_and_drop_of_a_tenant(caller: Caller) -> Call:
    caller.requeue(caller.hold(b"first", tenant="acme"))
    caller.enqueue_for("acme", b"second")
    caller.enqueue_for("zeta", b"third")
    caller.settings.tenant_limit, caller.settings.overload = 2, "drop"
    return partial(caller.enqueue, New(b"fourth", b"acme"), New(b"fifth", b"zeta"))


def enqueue_for_later(caller: Caller) -> Call:
    news = [New(b"first", due="+1000000000"), New(b"second", b"acme", due="+1000000000"), New(b"third", due="1")]
    return partial(caller.enqueue, *news)


def enqueue_for_later_behind_others(caller: Caller) -> Call:
    caller.enqueue(New(b"first", due="+1000"))
    return partial(caller.enqueue, New(b"second", due="+1000000000"))


def enqueue_everything_at_once(caller: Caller) -> Call:
    """For now and for later, with and without a tenant and a key, where the oldest has to leave."""
    caller.requeue(caller.hold(b"first", tenant="acme"))
    caller.settings.limit, caller.settings.overload = 4, "drop"
    caller.take_token()
    return partial(
        caller.enqueue,
        New(b"second", b"acme", marker="a key"),
        New(b"third", b"zeta"),
        b"fourth",
        New(b"fifth", due="+1000000000"),
    )


def claim_the_usual_way(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return caller.claim


def take_the_usual_way(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return caller.take


def take_the_last_one_beside_a_lease(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.publish(b"second")
    return caller.take


def take_in_vain(caller: Caller) -> Call:
    return caller.take


def take_what_has_expired(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.publish(b"second")
    caller.expire()
    return caller.take


def take_in_turns(caller: Caller) -> Call:
    caller.enqueue(New(b"first", b"acme"), b"second", New(b"third", b"zeta"))
    return caller.take


def take_what_was_delivered_before(caller: Caller) -> Call:
    caller.requeue(caller.hold(b"first"))
    return caller.take


def take_past_foreign_values(caller: Caller) -> Call:
    caller.client.rpush(KEYS.pending, b"foreign", b"\x80strange")
    caller.publish(b"first")
    return caller.take


def claim_the_usual_way_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_the_usual_way(caller)


def claim_when_woken(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    caller.take_token()
    return partial(caller.claim, woken=WOKEN)


def claim_from_watch(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.claim(slice_us=2 * HOUR_US)
    caller.publish_all([b"second", b"third"])
    caller.take_token()
    return partial(caller.claim, slice_us=2 * HOUR_US, woken=TIMER_OWNER)


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
    caller.requeue(caller.hold(b"first", b"second"))
    caller.publish(b"third")
    return caller.claim


def claim_nothing_but_returned_dead_letters(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.requeue(caller.hold(b"first", b"second"))
    return caller.claim


def claim_nothing_but_returned_dead_letters_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_nothing_but_returned_dead_letters(caller)


def claim_past_a_lease_without_a_body(caller: Caller) -> Call:
    caller.client.zadd(KEYS.leases, {new_id() + bytes(20): 1})
    caller.publish(b"first")
    return caller.claim


def claim_nothing_but_a_lease_without_a_body(caller: Caller) -> Call:
    caller.client.zadd(KEYS.leases, {new_id() + bytes(20): 1})
    return caller.claim


def claim_past_what_is_too_old(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    caller.settings.ttl_us = HOUR_US
    age(caller, KEYS.pending)
    caller.publish(b"third")
    return caller.claim


def claim_in_turns(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first", b"third")
    caller.enqueue_for("zeta", b"second")
    return partial(caller.claim, 2)


def claim_in_turns_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_in_turns(caller)


def claim_one_in_turns(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first", b"third")
    caller.enqueue_for("zeta", b"second")
    return caller.claim


def claim_one_in_turns_when_woken(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first")
    caller.enqueue_for("zeta", b"second")
    caller.take_token()
    return partial(caller.claim, woken=WOKEN)


def claim_the_last_of_a_tenant(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first")
    return caller.claim


def claim_in_turns_with_messages_without_a_tenant(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first", b"third")
    caller.publish(b"second")
    return partial(caller.claim, 2)


def claim_again_in_turns(caller: Caller) -> Call:
    caller.hold(b"first", b"third", tenant="acme")
    caller.hold(b"second")
    caller.enqueue_for("acme", b"fourth")
    caller.expire()
    return partial(caller.claim, 2)


def claim_in_turns_past_dead_letters(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.requeue(caller.hold(b"first", b"second", tenant="acme"))
    caller.hold(b"third", tenant="zeta")
    caller.enqueue_for("acme", b"fourth")
    caller.expire()
    return partial(caller.claim, 2)


def claim_nothing_but_dead_letters_in_turns(caller: Caller) -> Call:
    caller.settings.most = 1
    caller.requeue(caller.hold(b"first", b"second", tenant="acme"))
    return partial(caller.claim, 2)


def claim_what_is_due(caller: Caller) -> Call:
    caller.enqueue(New(b"first", due="+1000000000"), New(b"second", due="+1000000000"))
    caller.pass_delays()
    return partial(caller.claim, 2)


def claim_what_is_due_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_what_is_due(caller)


def claim_what_is_due_in_turns(caller: Caller) -> Call:
    caller.enqueue(New(b"first", b"acme", due="+1000000000"), New(b"second", b"zeta", due="+1000000000"))
    caller.retry_later(caller.hold(b"third", tenant="acme"))
    caller.pass_delays()
    return partial(caller.claim, 2)


def claim_in_vain_beside_a_delay(caller: Caller) -> Call:
    caller.enqueue(New(b"first", due="+1000000000"))
    return partial(caller.claim, slice_us=2 * HOUR_US)


def cancel_first(caller: Caller, *messages: New | bytes) -> None:
    """Enqueue these, and mark the first one."""
    base = fresh_base()
    caller.enqueue(*messages, base=base)
    assert caller.cancel(chunk_ids(base, 1)[0]) == b"marked"


def take_past_a_cancelled_one(caller: Caller) -> Call:
    cancel_first(caller, b"first", b"second")
    return caller.take


def claim_past_a_cancelled_one(caller: Caller) -> Call:
    cancel_first(caller, b"first", b"second", b"third")
    return partial(caller.claim, 2)


def claim_past_a_cancelled_one_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return claim_past_a_cancelled_one(caller)


def claim_nothing_but_a_cancelled_one(caller: Caller) -> Call:
    cancel_first(caller, b"first")
    return caller.claim


def claim_in_turns_past_a_cancelled_one(caller: Caller) -> Call:
    cancel_first(caller, New(b"first", b"acme"), New(b"second", b"acme"), New(b"third", b"zeta"))
    return partial(caller.claim, 2)


def claim_in_vain_beside_a_mark_of_nobody(caller: Caller) -> Call:
    caller.publish(b"first")
    assert caller.cancel(new_id()) == b"marked"
    caller.sweep("pending")
    return caller.claim


def claim_past_a_paused_tenant(caller: Caller) -> Call:
    caller.enqueue(New(b"first", b"acme"), New(b"second", b"zeta"), b"third")
    caller.pause("acme")
    return partial(caller.claim, 3)


def claim_one_past_a_paused_tenant(caller: Caller) -> Call:
    caller.enqueue(New(b"first", b"acme"), New(b"second", b"zeta"))
    caller.pause("acme")
    return caller.claim


def claim_nothing_but_paused_tenants(caller: Caller) -> Call:
    hold_and_let_come_back(caller)
    caller.pause("acme")
    caller.enqueue(New(b"third", b"acme"), New(b"fourth", b"acme", due="+1000000000"))
    caller.pass_delays()
    return partial(caller.claim, 3, slice_us=2 * HOUR_US)


def enqueue_for_a_paused_tenant(caller: Caller) -> Call:
    caller.pause("acme")
    return partial(caller.enqueue, New(b"first", b"acme"), New(b"second", b"zeta"))


def leave_messages_of_every_kind(caller: Caller) -> None:
    """Over the limit, under it, foreign, never delivered, due by now; with a tenant and without."""
    caller.settings.most = 2
    caller.hold(b"over the limit", tenant="acme")
    caller.expire()
    caller.claim()
    caller.hold(b"under the limit")
    caller.expire()
    caller.client.rpush(KEYS.pending, b"foreign")
    caller.publish(b"never delivered")
    cancel_first(caller, b"cancelled")
    caller.enqueue(New(b"due by now", b"acme", due="+1000000000"), New(b"due by now too", b"zeta", due="+1000000000"))
    caller.pass_delays()
    caller.take_token()


def claim_everything_at_once(caller: Caller) -> Call:
    leave_messages_of_every_kind(caller)
    return partial(caller.claim, 10)


def ack_one(caller: Caller) -> Call:
    return partial(caller.ack_one, caller.hold(b"first"))


def ack_one_of_a_tenant(caller: Caller) -> Call:
    return partial(caller.ack_one, caller.hold(b"first", tenant="acme"))


def ack_one_of_several(caller: Caller) -> Call:
    return partial(caller.ack_one, caller.hold(b"first", b"second")[1:])


def ack_one_that_was_delivered_twice(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.expire()
    return partial(caller.ack_one, caller.claim().taken)


def ack_one_that_came_back(caller: Caller) -> Call:
    return partial(caller.ack_one, hold_and_let_come_back(caller)[:1])


def ack_one_in_vain(caller: Caller) -> Call:
    held = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.ack_one, held)


def ack_and_take(caller: Caller) -> Call:
    held = caller.hold(b"first")
    caller.publish_all([b"second", b"third"])
    return partial(caller.ack_and_take, held)


def ack_and_take_beside_a_lease(caller: Caller) -> Call:
    held = caller.hold(b"first", b"second")
    caller.publish(b"third")
    return partial(caller.ack_and_take, held[1:])


def ack_and_take_in_vain(caller: Caller) -> Call:
    return partial(caller.ack_and_take, caller.hold(b"first"))


def ack_and_take_after_the_lease_was_lost(caller: Caller) -> Call:
    held = caller.hold(b"first")
    caller.expire()
    caller.claim()
    caller.publish(b"second")
    return partial(caller.ack_and_take, held)


def ack_and_take_after_a_second_delivery(caller: Caller) -> Call:
    caller.hold(b"first")
    caller.expire()
    held = caller.claim().taken
    caller.publish(b"second")
    return partial(caller.ack_and_take, held)


def ack_and_take_what_has_expired(caller: Caller) -> Call:
    held = caller.hold(b"first", b"second")
    caller.publish(b"third")
    caller.expire()
    return partial(caller.ack_and_take, held[:1])


def ack_and_take_of_a_tenant(caller: Caller) -> Call:
    held = caller.hold(b"first", tenant="acme")
    caller.publish(b"second")
    return partial(caller.ack_and_take, held)


def ack_and_take_in_turns(caller: Caller) -> Call:
    held = caller.hold(b"first")
    caller.enqueue(New(b"second", b"acme"), b"third", New(b"fourth", b"zeta"))
    return partial(caller.ack_and_take, held)


def ack_and_take_what_was_delivered_before(caller: Caller) -> Call:
    held = caller.hold(b"first", b"second")
    caller.requeue(held[1:])
    return partial(caller.ack_and_take, held[:1])


def ack_and_take_past_a_cancelled_one(caller: Caller) -> Call:
    held = caller.hold(b"first")
    cancel_first(caller, b"second", b"third")
    return partial(caller.ack_and_take, held)


def ack_and_take_from_a_paused_queue(caller: Caller) -> Call:
    held = caller.hold(b"first")
    caller.publish(b"second")
    caller.pause()
    return partial(caller.ack_and_take, held)


def ack_and_take_past_foreign_values(caller: Caller) -> Call:
    held = caller.hold(b"first")
    caller.client.rpush(KEYS.pending, b"foreign", b"\x80strange")
    caller.publish(b"second")
    return partial(caller.ack_and_take, held)


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


def settle_what_came_back(caller: Caller) -> Call:
    return partial(caller.settle, hold_and_let_come_back(caller), kept=KEYS.completed)


def settle_what_came_back_without_a_tenant(caller: Caller) -> Call:
    return partial(caller.settle, hold_and_let_come_back(caller, tenant=None))


def requeue(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    taken = caller.claim(2).taken
    caller.take_token()
    return partial(caller.requeue, taken)


def requeue_forgiven(caller: Caller) -> Call:
    return partial(caller.requeue, caller.hold(b"first", b"second"), forgiven=True)


def requeue_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return requeue(caller)


def requeue_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.requeue, stale)


def requeue_to_tenants(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first", b"third")
    caller.publish(b"second")
    taken = caller.claim(3).taken
    caller.take_token()
    return partial(caller.requeue, taken)


def requeue_what_came_back(caller: Caller) -> Call:
    return partial(caller.requeue, hold_and_let_come_back(caller))


def retry_later(caller: Caller) -> Call:
    return partial(caller.retry_later, caller.hold(b"first"))


def retry_later_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return retry_later(caller)


def retry_later_what_came_back(caller: Caller) -> Call:
    return partial(caller.retry_later, hold_and_let_come_back(caller, b"first"))


def retry_later_in_order(caller: Caller) -> Call:
    caller.settings.in_flight_limit = caller.settings.ordered = 1
    caller.enqueue(New(b"first", b"acme"), New(b"second", b"acme"))
    return partial(caller.retry_later, caller.claim().taken)


def retry_later_in_order_what_came_back(caller: Caller) -> Call:
    caller.settings.in_flight_limit = caller.settings.ordered = 1
    return partial(caller.retry_later, hold_and_let_come_back(caller, b"first"))


def retry_later_behind_another(caller: Caller) -> Call:
    caller.retry_later(caller.hold(b"first"), 1_000)
    return partial(caller.retry_later, caller.hold(b"second"))


def retry_later_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.retry_later, stale)


def hand_off(caller: Caller) -> Call:
    return partial(caller.hand_off, caller.hold(b"first"), b"second", New(b"third", marker="a key"))


def hand_off_without_leases(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    return hand_off(caller)


def hand_off_what_came_back(caller: Caller) -> Call:
    return partial(caller.hand_off, hold_and_let_come_back(caller, b"first"), b"second")


def hand_off_into_a_full_line(caller: Caller) -> Call:
    return partial(caller.hand_off, caller.hold(b"first"), b"second", b"third", limit=1)


def hand_off_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.hand_off, stale, b"second")


def hand_off_everything_at_once(caller: Caller) -> Call:
    """What was delivered twice leaves a record, and its results go to tenants and wait for their time."""
    caller.hold(b"first", tenant="acme")
    caller.expire()
    caller.settings.overload = "drop"
    third, fourth = New(b"third", b"acme", marker="a key"), New(b"fourth", b"acme", due="+1000000000")
    return partial(caller.hand_off, caller.claim().taken, b"second", third, fourth, keeps=True, limit=3)


def exported(payload: bytes, tenant: bytes = b"", *, entry: bool = False) -> bytes:
    """A message as an export has it, from another time."""
    flags, *rest = envelope.body(payload, tenant)
    stamp = (1_700_000_000_000_000).to_bytes(8, "big")
    return bytes((flags | (HAS_ENTRY if entry else 0),)) + new_id() + stamp + bytes(rest)


def restore(caller: Caller) -> Call:
    return partial(caller.restore, ("", b"", "", exported(b"first")), ("", b"", "", exported(b"second")))


def restore_again(caller: Caller) -> Call:
    message = ("", b"", "", exported(b"first"))
    caller.restore(message)
    return partial(caller.restore, message, message)


def restore_everything_at_once(caller: Caller) -> Call:
    """To wait, to be delayed, to be dropped and to keep a place, with and without a tenant, two delivered before."""
    caller.take_token()
    return partial(
        caller.restore,
        ("", b"2:2", "", exported(b"first", b"acme", entry=True)),
        ("4000000000000000", b"", "", exported(b"second")),
        ("", b"", "c", exported(b"third")),
        ("4000000000000000", b"1:1:1", "p", exported(b"fourth", b"zeta", entry=True)),
    )


def recorded(payload: bytes) -> tuple[bytes, bytes]:
    """A dead letter as an export has it."""
    record = {"bytes": len(payload), "sha1": hashlib.sha1(payload).hexdigest(), "finished": "1700000000000000"}
    return payload, json.dumps(record).encode()


def append(caller: Caller) -> Call:
    return partial(caller.append, recorded(b"first"), recorded(b"second"))


def append_again(caller: Caller) -> Call:
    caller.append(recorded(b"first"))
    return partial(caller.append, recorded(b"first"), recorded(b"second"), recorded(b"second"))


def redrive(caller: Caller) -> Call:
    caller.settle(caller.hold(b"first", b"second", b"third"), kept=KEYS.dead_letter)
    caller.take_token()
    return partial(caller.redrive, 2)


def redrive_duplicates(caller: Caller) -> Call:
    caller.settle(caller.hold(b"first", b"second"), kept=KEYS.dead_letter)
    return partial(caller.redrive, 2, marker="a key")


def redrive_into_a_full_line(caller: Caller) -> Call:
    caller.settings.limit = 1
    return redrive(caller)


def redrive_what_has_no_records(caller: Caller) -> Call:
    caller.client.rpush(KEYS.dead_letter, b"first", b"second")
    return partial(caller.redrive, 2)


def redrive_everything_at_once(caller: Caller) -> Call:
    caller.settle(caller.hold(b"first", b"second"), kept=KEYS.dead_letter)
    caller.settings.limit = 5
    return partial(caller.redrive, 2, tenant=b"acme", marker="a key")


def stats(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first")
    caller.publish(b"second")
    return caller.stats


def read_page(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(caller.read_page, (KEYS.pending, ("right", 0, 10)))


def sweep_a_line(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(caller.sweep, "pending")


def sweep_a_line_of_a_tenant(caller: Caller) -> Call:
    hold_and_let_come_back(caller)
    caller.requeue(caller.hold(b"first", tenant="acme"))
    return partial(caller.sweep, "pending", "acme")


def sweep_what_waits_for_its_time(caller: Caller) -> Call:
    caller.retry_later(caller.hold(b"first"))
    caller.enqueue(New(b"second", b"acme", due="+1000000000"))
    return partial(caller.sweep, "delayed")


def sweep_a_list(caller: Caller) -> Call:
    caller.settle(caller.hold(b"first", b"second"), kept=KEYS.completed)
    return partial(caller.sweep, "list")


def sweep_orphans(caller: Caller) -> Call:
    caller.settings.lease_us = 0
    held = caller.hold(b"first", b"second", tenant="acme")
    return partial(caller.sweep, "orphans", b"".join(one.token for one in held))


def cancel_what_is_delayed(caller: Caller) -> Call:
    base = fresh_base()
    caller.enqueue(New(b"first", b"acme", due="+1000000000"), base=base)
    return partial(caller.cancel, chunk_ids(base, 1)[0])


def cancel_what_waits_for_its_next_attempt(caller: Caller) -> Call:
    (held,) = caller.hold(b"first")
    caller.retry_later([held])
    caller.enqueue(New(b"second", due="+1000000000"))
    return partial(caller.cancel, held.id)


def cancel_what_waits(caller: Caller) -> Call:
    return partial(caller.cancel, caller.publish_all([b"first", b"second"])[1])


def cancel_what_waits_of_a_tenant(caller: Caller) -> Call:
    cancel_first(caller, New(b"first", b"zeta"))
    return partial(caller.cancel, caller.enqueue_for("acme", b"first")[0])


def cancel_again(caller: Caller) -> Call:
    (id,) = caller.publish_all([b"first"])
    caller.cancel(id)
    return partial(caller.cancel, id)


def cancel_what_is_in_flight(caller: Caller) -> Call:
    caller.publish(b"second")
    return partial(caller.cancel, caller.hold(b"first")[0].id)


def cancel_in_vain(caller: Caller) -> Call:
    caller.hold(b"first")
    return partial(caller.cancel, new_id())


def cancel_no_more(caller: Caller) -> Call:
    """The message is in another partition, and its mark is the last one."""
    (id,) = caller.publish_all([b"first"])
    caller.cancel(id)
    return partial(caller.cancel, id, withdraws=True)


def cancel_no_more_in_vain(caller: Caller) -> Call:
    cancel_first(caller, b"first", b"second")
    return partial(caller.cancel, new_id(), withdraws=True)


def pause_the_queue(caller: Caller) -> Call:
    caller.publish(b"first")
    return caller.pause


def pause_a_tenant(caller: Caller) -> Call:
    caller.enqueue(New(b"first", b"acme"), New(b"second", b"zeta"))
    return partial(caller.pause, "acme")


def pause_a_tenant_without_messages(caller: Caller) -> Call:
    caller.enqueue_for("zeta", b"first")
    return partial(caller.pause, "acme")


def pause_a_tenant_again(caller: Caller) -> Call:
    pause_a_tenant(caller)()
    return partial(caller.pause, "acme")


def pause_no_more(caller: Caller) -> Call:
    pause_the_queue(caller)()
    return caller.resume


def pause_a_tenant_no_more(caller: Caller) -> Call:
    pause_a_tenant(caller)()
    caller.take_token()
    return partial(caller.resume, "acme")


def renew(caller: Caller) -> Call:
    return partial(caller.renew, caller.hold(b"first", b"second"))


def renew_of_tenants(caller: Caller) -> Call:
    return partial(caller.renew, caller.hold(b"first", b"second", tenant="acme"))


def renew_what_came_back(caller: Caller) -> Call:
    return partial(caller.renew, hold_and_let_come_back(caller))


def renew_in_vain(caller: Caller) -> Call:
    stale = caller.hold(b"first")
    caller.expire()
    caller.claim()
    return partial(caller.renew, stale)


def open_queue(caller: Caller) -> Call:
    caller.client.delete(KEYS.meta)
    caller.weigh(zeta=3)
    return partial(caller.open_queue, journal="1", weights={"acme": 2, "zeta": 1})


def open_queue_with_partitions(caller: Caller) -> Call:
    caller.client.delete(KEYS.meta)
    return partial(caller.open_queue, journal="1", weights={"acme": 2}, partitions=2)


def grow_partition(caller: Caller) -> Call:
    """From two partitions to three."""
    caller.client.hset(caller.key("counted"), mapping={"version": "partitions:2", "partitions": 2})
    caller.client.rename(KEYS.meta, caller.key("before"))
    return partial(caller.grow_partition, 2, 3)


def read_shared_state(caller: Caller) -> Call:
    caller.weigh(zeta=3)
    caller.pause("zeta")
    return partial(caller.read_shared_state, "weights")


def share_state(caller: Caller) -> Call:
    """Into a partition that nobody has used, beside what a growth that was interrupted has left there."""
    caller.client.delete(KEYS.meta)
    caller.share_state(("meta", "paused:zeta", "1"), ("weights", "zeta", "3"))
    return partial(
        caller.share_state,
        *(("meta", "paused:zeta", ""), ("meta", "paused:acme", "2"), ("meta", "journal", "1"), ("weights", "zeta", "")),
    )


def notify(caller: Caller) -> Call:
    return caller.notify


def announce_worker(caller: Caller) -> Call:
    """Its entry takes the place of the one before, beside one that has expired."""
    caller.client.zadd(KEYS.connected_workers, {"expired": 1})
    former = caller.announce_worker()
    return partial(caller.announce_worker, former=former, idle_us=5)


def announce_worker_that_ends(caller: Caller) -> Call:
    return partial(caller.announce_worker, "", caller.announce_worker())


def claim_with_a_tick(caller: Caller) -> Call:
    """The caller is told that a schedule has a tick."""
    caller.schedule(next=1)
    return caller.claim


def claim_with_a_tick_without_leases(caller: Caller) -> Call:
    caller.schedule(next=1)
    caller.settings.lease_us = 0
    caller.publish(b"first")
    return caller.claim


def schedule(caller: Caller) -> Call:
    return caller.schedule


def schedule_another(caller: Caller) -> Call:
    caller.schedule("hourly", next=caller.now_us() + 2 * HOUR_US)
    return caller.schedule


def schedule_the_same(caller: Caller) -> Call:
    caller.schedule()
    return caller.schedule


def schedule_another_message(caller: Caller) -> Call:
    caller.schedule()
    return partial(caller.schedule, payload=b"another")


def schedule_another_time(caller: Caller) -> Call:
    caller.schedule()
    return partial(caller.schedule, timing="hourly")


def schedule_too_many(caller: Caller) -> Call:
    caller.schedule()
    return partial(caller.schedule, "hourly", most=1)


def unschedule(caller: Caller) -> Call:
    caller.schedule()
    caller.schedule("hourly", next=1)
    return caller.unschedule


def unschedule_the_last(caller: Caller) -> Call:
    caller.schedule()
    return caller.unschedule


def unschedule_in_vain(caller: Caller) -> Call:
    caller.schedule("hourly")
    return caller.unschedule


def tick(caller: Caller) -> Call:
    caller.schedule(next=1)
    return partial(caller.tick, b"report")


def tick_for_tenants(caller: Caller) -> Call:
    caller.schedule(next=1)
    caller.schedule("hourly", next=1)
    caller.settings.limit, caller.settings.overload = 4, "drop"
    return partial(caller.tick, New(b"report", b"acme"), New(b"another", b"acme"))


def tick_without_a_message(caller: Caller) -> Call:
    caller.schedule(next=1)
    return caller.tick


def tick_for_the_last_time(caller: Caller) -> Call:
    caller.schedule(next=1)
    return partial(caller.tick, b"report", next="inf")


def tick_into_a_full_line(caller: Caller) -> Call:
    caller.schedule(next=1)
    caller.publish_all([b"first", b"second"])
    caller.settings.limit = 2
    return partial(caller.tick, b"report")


def tick_in_vain(caller: Caller) -> Call:
    """Another caller has published it."""
    caller.schedule(next=1)
    stale = caller.client.hget(KEYS.schedule("nightly"), "after")
    caller.tick(b"report")
    return partial(caller.tick, b"again", after=stale)


def tick_too_early(caller: Caller) -> Call:
    caller.schedule(next=1)
    return partial(caller.tick, b"report", done=caller.now_us() + HOUR_US)


def tick_of_a_schedule_that_is_gone(caller: Caller) -> Call:
    return partial(caller.tick, b"report", revision=b"x", after=1)


def read_schedules(caller: Caller) -> Call:
    caller.schedule()
    caller.schedule("hourly", next="inf")
    return caller.read_schedules


PUBLISHES: tuple[Situation, ...] = (
    publish,
    publish_with_a_key,
    publish_behind_others,
    publish_a_duplicate,
)
ENQUEUES: tuple[Situation, ...] = (
    enqueue,
    enqueue_what_is_ready,
    enqueue_in_full,
    enqueue_with_keys,
    enqueue_behind_others,
    enqueue_duplicates,
    enqueue_duplicates_in_full,
    enqueue_nothing_but_duplicates,
    enqueue_into_a_full_line,
    enqueue_and_drop,
    enqueue_for_tenants,
    enqueue_behind_others_of_a_tenant,
    enqueue_into_the_full_line_of_a_tenant,
    enqueue_and_drop_of_a_tenant,
    enqueue_for_later,
    enqueue_for_later_behind_others,
    enqueue_for_a_paused_tenant,
    enqueue_everything_at_once,
)
BACKFILLS: tuple[Situation, ...] = (
    backfill,
    backfill_behind_others,
    backfill_what_another_has_stored,
    backfill_into_a_full_line,
)
CLAIMS: tuple[Situation, ...] = (
    take_the_usual_way,
    take_the_last_one_beside_a_lease,
    take_in_vain,
    take_what_has_expired,
    take_in_turns,
    take_what_was_delivered_before,
    take_past_foreign_values,
    ack_and_take,
    ack_and_take_beside_a_lease,
    ack_and_take_in_vain,
    ack_and_take_after_the_lease_was_lost,
    ack_and_take_after_a_second_delivery,
    ack_and_take_what_has_expired,
    ack_and_take_of_a_tenant,
    ack_and_take_in_turns,
    ack_and_take_what_was_delivered_before,
    ack_and_take_past_a_cancelled_one,
    ack_and_take_from_a_paused_queue,
    ack_and_take_past_foreign_values,
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
    claim_past_what_is_too_old,
    claim_in_turns,
    claim_in_turns_without_leases,
    claim_one_in_turns,
    claim_one_in_turns_when_woken,
    claim_the_last_of_a_tenant,
    claim_in_turns_with_messages_without_a_tenant,
    claim_again_in_turns,
    claim_in_turns_past_dead_letters,
    claim_nothing_but_dead_letters_in_turns,
    claim_what_is_due,
    claim_what_is_due_without_leases,
    claim_what_is_due_in_turns,
    claim_in_vain_beside_a_delay,
    take_past_a_cancelled_one,
    claim_past_a_cancelled_one,
    claim_past_a_cancelled_one_without_leases,
    claim_nothing_but_a_cancelled_one,
    claim_in_turns_past_a_cancelled_one,
    claim_in_vain_beside_a_mark_of_nobody,
    claim_past_a_paused_tenant,
    claim_one_past_a_paused_tenant,
    claim_nothing_but_paused_tenants,
    claim_everything_at_once,
    claim_with_a_tick,
    claim_with_a_tick_without_leases,
)
SETTLEMENTS: tuple[Situation, ...] = (
    ack_one,
    ack_one_of_a_tenant,
    ack_one_of_several,
    ack_one_that_was_delivered_twice,
    ack_one_that_came_back,
    ack_one_in_vain,
    settle_one,
    settle_one_without_leases,
    settle,
    settle_without_leases,
    settle_into_a_list,
    settle_into_a_list_without_leases,
    settle_what_was_delivered_twice,
    settle_in_vain,
    settle_partly_in_vain,
    settle_what_came_back,
    settle_what_came_back_without_a_tenant,
)
RETURNS: tuple[Situation, ...] = (
    requeue,
    requeue_forgiven,
    requeue_without_leases,
    requeue_in_vain,
    requeue_to_tenants,
    requeue_what_came_back,
)
PUT_OFFS: tuple[Situation, ...] = (
    retry_later,
    retry_later_without_leases,
    retry_later_what_came_back,
    retry_later_in_order,
    retry_later_in_order_what_came_back,
    retry_later_behind_another,
    retry_later_in_vain,
)
HAND_OFFS: tuple[Situation, ...] = (
    hand_off,
    hand_off_without_leases,
    hand_off_what_came_back,
    hand_off_into_a_full_line,
    hand_off_in_vain,
    hand_off_everything_at_once,
)
REDRIVES: tuple[Situation, ...] = (
    redrive,
    redrive_duplicates,
    redrive_into_a_full_line,
    redrive_what_has_no_records,
    redrive_everything_at_once,
    restore,
    restore_again,
    restore_everything_at_once,
    append,
    append_again,
)
RENEWALS: tuple[Situation, ...] = (
    renew,
    renew_of_tenants,
    renew_what_came_back,
    renew_in_vain,
)
SWEEPS: tuple[Situation, ...] = (
    sweep_a_line,
    sweep_a_line_of_a_tenant,
    sweep_what_waits_for_its_time,
    sweep_a_list,
    sweep_orphans,
)
CANCELS: tuple[Situation, ...] = (
    cancel_what_is_delayed,
    cancel_what_waits_for_its_next_attempt,
    cancel_what_waits,
    cancel_what_waits_of_a_tenant,
    cancel_again,
    cancel_what_is_in_flight,
    cancel_in_vain,
    cancel_no_more,
    cancel_no_more_in_vain,
)
PAUSES: tuple[Situation, ...] = (
    pause_the_queue,
    pause_a_tenant,
    pause_a_tenant_without_messages,
    pause_a_tenant_again,
    pause_no_more,
    pause_a_tenant_no_more,
)
SCHEDULES: tuple[Situation, ...] = (
    schedule,
    schedule_another,
    schedule_the_same,
    schedule_another_message,
    schedule_another_time,
    schedule_too_many,
    unschedule,
    unschedule_the_last,
    unschedule_in_vain,
    tick,
    tick_for_tenants,
    tick_without_a_message,
    tick_for_the_last_time,
    tick_into_a_full_line,
    tick_in_vain,
    tick_too_early,
    tick_of_a_schedule_that_is_gone,
)
NUMBERED = (
    *(*PUBLISHES, *ENQUEUES, *CLAIMS, *SETTLEMENTS, *RETURNS, *PUT_OFFS, *HAND_OFFS, *REDRIVES, *SWEEPS),
    *(*CANCELS, *PAUSES, *SCHEDULES),
)
OPENINGS: tuple[Situation, ...] = (open_queue, open_queue_with_partitions, grow_partition, share_state)
WORKERS: tuple[Situation, ...] = (announce_worker, announce_worker_that_ends)
READS: tuple[Situation, ...] = (stats, read_page, read_schedules, read_shared_state)
EVERY = (*NUMBERED, *BACKFILLS, *RENEWALS, *READS, *OPENINGS, *WORKERS, notify)


@cache
def script_of(situation: Situation) -> str:
    """The script that a situation calls."""
    return next(name for name in all_names() if situation.__name__.startswith(name))


def title(situation: Any) -> str:
    """What a parametrized test calls it."""
    return situation.__name__.replace("_", " ") if callable(situation) else str(situation)
