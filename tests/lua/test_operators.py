"""What operators read and remove: bounded in messages and bytes, and nothing newer than the call."""

import hashlib
from itertools import product

import pytest

from tests.lua.scripts_runner import KEYS, Caller, New
from tests.lua.state import faults
from tests.tables import row

pytestmark = pytest.mark.topic("Operator tools")

DEEP = 50_000  # from which on lists are read in slices


# Pages


def test_a_page_has_the_elements_in_the_order_of_their_places(caller: Caller, subtests: pytest.Subtests):
    """Near an end they are read one by one, far from both in slices; beyond the list there is nothing."""
    length = 2 * DEEP + 10_000
    caller.client.rpush("list", *range(length))
    firsts = (0, 7, DEEP - 3, DEEP + 5_000, 2 * DEEP - 40, 2 * DEEP + 10_000 - 4, 3 * DEEP)
    for side, first in product(("left", "right"), firsts):
        with row(subtests, side=side, first=first):
            more, page = caller.read_page(("list", (side, first, 100)))
            places = range(first, min(first + 100, length))
            assert [int(one) for one in page] == [place if side == "left" else length - 1 - place for place in places]
            assert more == 0


@pytest.mark.promise("Operator tools read or remove at most 4 MB, or one message, in one script or reply.")
def test_a_page_ends_at_its_limits_and_has_one_element_at_least(caller: Caller):
    """What was read of the last key, if anything, is there; the keys behind it are not."""
    caller.client.rpush("list", *(b"x" * size for size in (5, 1, 1, 1)))
    caller.client.hset("hash", mapping={"a": b"y" * 9, "b": b"", "c": b"z"})
    everything = (("list", ("left", 0, 9)), ("hash", ("hash", 4, "a", "?", "b", "c")))
    x, y = b"x", b"y" * 9
    assert caller.read_page(*everything) == [0, [x * 5, x, x, x], [y, None, b"", b"z"]]
    assert caller.read_page(*everything, max_elements=4) == [1, [x * 5, x, x, x], []]
    assert caller.read_page(*everything, max_elements=2) == [1, [x * 5, x]]
    assert caller.read_page(*everything, max_bytes=3) == [1, [x * 5]]
    assert caller.read_page(*everything, max_bytes=6) == [1, [x * 5, x]]
    assert caller.read_page(*everything, max_bytes=17) == [1, [x * 5, x, x, x], [y, None, b""]]
    assert caller.read_page(("none", ("left", 0, 5)), ("none", ("hash", 1, "a"))) == [0, [], [None]]


def test_what_is_redriven_is_removed_from_the_nearer_end(caller: Caller):
    """Twins elsewhere in the list stay where they are. LREM with a negative count begins at the right end."""
    letters = [b"twin", *(b"%d" % number for number in range(200)), b"twin", b"last"]
    caller.client.rpush(KEYS.dead_letter, *letters)
    # From the right: near the left end, just left and right of the middle, at the right end.
    for place, count in ((len(letters) - 2, 1), (102, 1), (99, -1), (0, -1)):
        payload = letters.pop(len(letters) - 1 - place)
        words = caller._words("redrive", {}, (), call=caller._numbered(None), base=b"%014d" % place)
        words += [place, hashlib.sha1(payload).hexdigest(), -1, "", 0, b"\x80" + payload]
        with caller.client.monitor() as overheard:
            assert caller._send_words("redrive", words) == b"1"
            removal = next(one for one in iter(overheard.next_command, None) if one["command"].startswith("LREM"))
        assert removal["command"].split()[2] == str(count)
        assert caller.client.lrange(KEYS.dead_letter, 0, -1) == letters


# The oldest


def all_stats(caller: Caller) -> tuple[int, int]:
    """How many calls it took, and how old the oldest is."""
    cursor, last, ages = b"-inf", b"", []
    while cursor:
        *_, age, cursor, last = caller.stats(cursor, last)
        ages.append(age)
    return len(ages), max(ages)


def test_heads_are_looked_at_up_to_four_megabytes(caller: Caller):
    """One of them may have more; whether tenants have the same place in the ring or not."""
    for tenant in "abcdef":
        caller.enqueue_for(tenant, b"x" * 1_500_000)
    caller.publish(b"the last, without a tenant")
    head = caller.client.lindex(KEYS.tenant_pending("a"), -1)
    age = caller.now_us() - int.from_bytes(head[17:25], "big")
    for _ in range(2):
        calls, oldest = all_stats(caller)
        assert (calls, oldest >= age) == (2, True)
        caller.client.zadd(KEYS.tenant_ring, dict.fromkeys("abcdef", 27_720))
    caller.enqueue_for("a", b"y" * 5_000_000)
    caller.client.lmove(KEYS.tenant_pending("a"), KEYS.tenant_pending("a"), "LEFT", "RIGHT")
    assert all_stats(caller)[0] == 3
    assert caller.stats(b"")[6:] == [6, 0, 0, -1, b"", b""]


def test_who_is_served_meanwhile_hides_nobody(caller: Caller):
    """Tenants that leave their places between two looks do not move others past the second look."""
    caller.enqueue(*[New(b"x", b"tenant %d" % number) for number in range(1_000)])
    caller.enqueue_for("oldest", b"x")
    *_, cursor, last = caller.stats()
    assert last == b"tenant 999"
    caller.claim(500)
    (head,) = caller.client.lrange(KEYS.tenant_pending("oldest"), 0, -1)
    *_, age, cursor, last = caller.stats(cursor, last)
    assert (age > 0, cursor) == (True, b"")
    assert len(head) > 25


@pytest.mark.parametrize("leaves", [True, False])
def test_who_was_looked_at_last_and_has_moved_hides_nobody(leaves: bool, caller: Caller):
    """The second look begins with all who have the same place in the ring."""
    names = [*(f"tenant {number}" for number in range(999)), "beside", "beside it"]
    for name in names:
        caller.enqueue(New(b"x", name.encode()))
    (head,) = caller.client.lrange(KEYS.tenant_pending("beside it"), 0, -1)
    caller.client.lset(KEYS.tenant_pending("beside it"), 0, head[:17] + (1).to_bytes(8, "big") + head[25:])  # of 1970
    caller.client.zadd(KEYS.tenant_ring, {name: min(place, 999) for place, name in enumerate(names)})
    *_, cursor, last = caller.stats()
    assert (cursor, last) == (b"999", b"beside")
    if leaves:
        caller.client.zrem(KEYS.tenant_ring, "beside")
    else:
        caller.client.zadd(KEYS.tenant_ring, {"beside": 5_000})
    *_, age, cursor, last = caller.stats(cursor, last)
    assert (age > 1_000_000_000_000_000, cursor) == (True, b"")


# What came after it began


def test_of_a_line_goes_what_was_there(caller: Caller):
    """A message that is published meanwhile stays, and its tenant keeps its position."""
    caller.publish_all([b"a", b"b"])
    caller.enqueue_for("acme", b"c")
    began = caller.now_us()
    caller.publish_all([b"d"])
    caller.enqueue_for("acme", b"e")
    caller.enqueue_for("other", b"f")
    assert caller.sweep("pending", "", "acme", "other", began=began) == b"3 "
    assert sorted(caller.claim(9).payloads) == [b"d", b"e", b"f"]
    assert faults(caller.client) == []


def test_of_what_came_back_goes_what_had_come_back_then(caller: Caller):
    """A lease that ended later was held when it began."""
    caller.hold(b"a", tenant="acme")
    caller.expire()
    caller.enqueue_for("other", b"b")
    assert caller.claim().payloads == [b"b"]  # and what ran out has come back to its tenant
    came_back, began = caller.client.zrange(KEYS.expired("acme"), 0, -1), caller.now_us()
    caller.client.zadd(KEYS.expired("acme"), dict.fromkeys(came_back, began + 1))
    assert caller.sweep("pending", "acme", began=began) == b"0 "
    assert caller.client.zcard(KEYS.expired("acme")) == 1
    assert caller.sweep("pending", "acme", began=began + 1) == b"1 "
    assert faults(caller.client) == []


def test_of_delayed_messages_goes_what_was_published_then(caller: Caller):
    """Whatever its time is; the alarm stays for those that are left."""
    caller.enqueue(New(b"a", due="+9000000000"), New(b"b", b"acme", due="+1000000000"))
    began = caller.now_us()
    caller.enqueue(New(b"c", due="+5000000000"))
    assert caller.sweep("delayed", began=began) == b"2 "
    assert len(caller.due_times()) == 1
    caller.pass_delays(2 * 9_000_000_000)
    assert caller.claim(9).payloads == [b"c"]
    assert faults(caller.client) == []


def test_many_tenants_leave_the_ring_in_one_step(caller: Caller):
    """At most a thousand messages; where it stopped, it can go on."""
    for tenant, count in (("a", 600), ("b", 300), ("c", 400), ("d", 1)):
        caller.enqueue_for(tenant, *[b"m"] * count)
    assert caller.sweep("pending", "a", "b", "c", "d") == b"1000 2"
    assert (caller.client.llen(KEYS.tenant_pending("c")), caller.client.zcard(KEYS.tenant_ring)) == (300, 2)
    assert faults(caller.client) == []
    assert caller.sweep("pending", "c", "d", "nobody") == b"301 "
    assert caller.client.exists(KEYS.tenant_ring, KEYS.tenant_backlog, KEYS.leases) == 0


# Schedules


@pytest.mark.parametrize("timing", ["daily", "hourly"])
def test_a_schedule_begins_when_it_is_stored(timing: str, caller: Caller):
    """New or with other ticks: if the call took long, another definition has published the ticks since it began."""
    caller.schedule(timing="daily")
    if timing == "daily":
        caller.unschedule()
    before = caller.now_us()
    assert caller.schedule(timing=timing, created=before - 10_000_000) in (b"new", b"changed")
    assert int(caller.client.hget(KEYS.schedule("nightly"), "after") or 0) >= before


@pytest.mark.parametrize("first", ["another caller published it", "its message was changed"])
def test_a_tick_that_was_read_before_is_refused(first: str, caller: Caller):
    """Between reading a schedule and publishing its tick, another caller may have been faster than this one."""
    caller.schedule(payload=b"old")
    record = caller.client.hgetall(KEYS.schedule("nightly"))
    read = {"revision": record[b"revision"], "after": int(record[b"after"])}
    if first == "its message was changed":
        assert caller.schedule(payload=b"new") == b"changed"
    else:
        assert caller.tick(b"old", **read) == b"1"
    waiting = caller.client.lrange(KEYS.pending, 0, -1)
    assert caller.tick(b"old", **read) == b"0"
    assert caller.client.lrange(KEYS.pending, 0, -1) == waiting
    assert faults(caller.client) == []
