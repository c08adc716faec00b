"""A chunk of messages is enqueued once: all of it or nothing."""

import pytest
import redis

from redis_message_queue.stored import envelope
from tests.lua.scripts_runner import HOUR_US, KEYS, Caller, New, chunk_ids, dump, fresh_base, numbered
from tests.lua.state import faults, read

pytestmark = pytest.mark.topic("Publishing many")

OWN, OTHER = b"acme", b"zeta"


def drop_beyond(caller: Caller, limit: int = 0, tenant_limit: int = 0) -> None:
    caller.settings.limit, caller.settings.tenant_limit, caller.settings.overload = limit, tenant_limit, "drop"


def waiting(caller: Caller, tenant: bytes = b"") -> list[bytes]:
    """The payloads in a line, the oldest first."""
    line = KEYS.tenant_pending(tenant.decode()) if tenant else KEYS.pending
    return [envelope.Envelope(stored).payload for stored in reversed(caller.client.lrange(line, 0, -1))]


# What is written


@pytest.mark.parametrize("form", ["bare", "ready", "full"])
@pytest.mark.parametrize("count", [1, 2, 999, 1_000])
def test_a_chunk_enters_in_its_order(caller: Caller, count: int, form: str):
    """Behind those that wait; the ids are what they have in common and their places."""
    caller.publish(b"waits already")
    base = fresh_base()
    assert caller.enqueue(*numbered(count), base=base, form=form) == b"1" * count
    assert waiting(caller) == [b"waits already", *numbered(count)]
    ids = [envelope.Envelope(stored).id for stored in reversed(read(caller.client).lines[""])]
    assert ids[1:] == chunk_ids(base, count)


@pytest.mark.parametrize("form", ["ready", "full"])
def test_a_bare_chunk_is_stored_as_any_other(caller: Caller, other: Caller, form: str):
    """Byte for byte, apart from the time."""
    base, payloads = fresh_base(), [b"", b"x", b"\x80\xff\x00", *numbered(7)]
    bare = other.enqueue(*payloads, base=base, form="bare"), without_time(caller)
    caller.client.flushall()
    assert (caller.enqueue(*payloads, base=base, form=form), without_time(caller)) == bare


def test_every_part_of_a_message_that_is_ready_is_stored_as_in_full(caller: Caller, other: Caller):
    news = [
        New(b"", b"acme", extras=b"{}"),
        New(b"\x80\xff\x00", extras=b'{"headers":{}}'),
        New(b"x", b"zeta"),
        New(b"y"),
    ]
    base, stored = fresh_base(), []
    for sender, form in ((caller, "ready"), (other, "full")):
        sender.enqueue(*news, base=base, form=form)
        stored.append(
            [without_time(caller, one) for one in (KEYS.pending, *map(KEYS.tenant_pending, ("acme", "zeta")))]
        )
        caller.client.flushall()
    assert stored[0] == stored[1] != [[], [], []]


def without_time(caller: Caller, key: str = KEYS.pending) -> list[bytes]:
    stored = caller.client.lrange(key, 0, -1)
    return [one[: envelope.TIME_AT] + one[envelope.HEADER_BYTES :] for one in stored]


def test_a_chunk_of_one_is_stored_as_publish_stores_it(caller: Caller):
    """Whichever way a message takes, it is the same message."""
    base = fresh_base()
    caller.enqueue(b"first", base=base)
    enqueued = without_time(caller)
    caller.client.flushall()
    caller.publish(b"first", id=chunk_ids(base, 1)[0])
    assert without_time(caller) == enqueued


def test_the_server_stamps_one_time_for_all(caller: Caller):
    """And it is its own."""
    before = caller.now_us()
    caller.enqueue(New(b"first", OWN), b"second", New(b"third", due="+1000000000"))
    times = {int.from_bytes(one[envelope.TIME_AT : envelope.HEADER_BYTES], "big") for one in read(caller.client).stored}
    assert len(times) == 1
    assert before <= times.pop() <= caller.now_us()


def test_tenants_and_extras_come_out_as_they_went_in(caller: Caller):
    """Each message with its own."""
    news = [
        New(b"plain"),
        New(b"of a tenant", OWN),
        New(b"with extras", extras=b'{"note": 1}'),
        New(b"with both", "Ümläut".encode(), extras=b'{"note": 2}'),
        New(b"x" * 1_000, b"t" * 255, extras=b"{}"),
    ]
    caller.enqueue(*news)
    opened = [envelope.Envelope(stored) for stored in read(caller.client).stored]
    found = {one.payload: ((one.tenant or "").encode(), one.extras) for one in opened}
    assert found == {
        b"plain": (b"", {}),
        b"of a tenant": (OWN, {}),
        b"with extras": (b"", {"note": 1}),
        b"with both": ("Ümläut".encode(), {"note": 2}),
        b"x" * 1_000: (b"t" * 255, {}),
    }
    assert faults(caller.client) == []


def test_a_thousand_tenants_may_come_at_once(caller: Caller):
    """Each gets its line and its place in the ring."""
    assert caller.enqueue(*[New(b"x", b"tenant %d" % place) for place in range(1_000)]) == b"1" * 1_000
    assert caller.client.zcard(KEYS.tenant_ring) == int(caller.client.get(KEYS.tenant_backlog)) == 1_000
    assert faults(caller.client) == []


@pytest.mark.parametrize("form", ["bare", "ready", "full"])
def test_more_than_a_thousand_are_refused(caller: Caller, form: str):
    """A caller that forgets the limit hears of it, and has changed nothing."""
    with pytest.raises(redis.ResponseError, match="at most 1,000 messages"):
        caller.enqueue(*numbered(1_001), form=form)
    assert dump(caller.client) == {}


def test_a_chunk_of_nothing_changes_nothing(caller: Caller):
    """There is nothing to say of it either."""
    assert caller.enqueue() == caller.repeat() == b""
    assert dump(caller.client).keys() == {caller.reply.encode()}


# Duplicates


def test_a_key_counts_once_within_a_chunk(caller: Caller):
    """The first of them gets in."""
    news = [New(payload, marker=key) for payload, key in zip(numbered(5), "abaca", strict=True)]
    assert caller.enqueue(*news) == b"11010"
    assert waiting(caller) == [b"message 0", b"message 1", b"message 3"]


def test_a_key_counts_once_across_chunks_and_single_messages(caller: Caller):
    """Whichever way they came, tenant or not."""
    caller.publish(b"first", marker="a")
    assert caller.enqueue(New(b"x", OWN, marker="a"), New(b"second", OWN, marker="b"), b"third") == b"011"
    assert caller.publish(b"x", marker="b") == 0
    assert caller.enqueue(New(b"x", marker="b"), New(b"x", due="+1000000", marker="a")) == b"00"
    assert waiting(caller) == [b"first", b"third"]
    assert waiting(caller, OWN) == [b"second"]


@pytest.mark.parametrize("due", ["", "+1000000000"], ids=["now", "later"])
def test_a_marker_names_its_message_and_lives_for_its_window(caller: Caller, due: str):
    """Also that of a message which waits for its time."""
    caller.settings.window_ms = 30_000
    base = fresh_base()
    caller.enqueue(New(b"first", due=due, marker="a"), base=base)
    assert caller.client.get(KEYS.deduplication("a")) == chunk_ids(base, 1)[0]
    assert 0 < caller.client.pttl(KEYS.deduplication("a")) <= 30_000


def test_a_duplicate_does_not_prolong_its_marker(caller: Caller):
    """The window began with the first."""
    caller.enqueue(New(b"first", marker="a"))
    caller.client.pexpire(KEYS.deduplication("a"), 30_000)
    assert caller.enqueue(New(b"second", marker="a")) == b"0"
    assert caller.client.pttl(KEYS.deduplication("a")) <= 30_000


def test_a_marker_of_a_wrong_type_fails_the_chunk_and_nothing_has_changed(caller: Caller):
    """Wherever in the chunk it is."""
    caller.client.lpush(KEYS.deduplication("c"), "something else")
    before = dump(caller.client)
    for keys in ("cab", "acb", "abc"):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            caller.enqueue(*[New(b"x", OWN, marker=key) for key in keys])
        assert dump(caller.client) == before


def test_a_thousand_keys_go_in_one_call(caller: Caller):
    """Half of them are known."""
    keys = [f"key {place}" for place in range(1_000)]
    caller.enqueue_all(New(b"first", marker=key) for key in keys[::2])
    assert caller.enqueue(*[New(b"second", marker=key) for key in keys]) == b"01" * 500
    assert caller.client.llen(KEYS.pending) == 1_000


# Limits that refuse


@pytest.mark.promise("A chunk is published whole or not at all, with no other message inside it.")
@pytest.mark.parametrize("count, answer", [(1, b"1"), (2, b"11"), (3, b"-"), (4, b"-")])
def test_a_chunk_gets_in_as_a_whole_or_not_at_all(caller: Caller, count: int, answer: bytes):
    """Up to the limit all get in; beyond it none, and nothing has changed but the caller's answer."""
    caller.settings.limit = 5
    caller.enqueue(New(b"of a tenant", OWN), b"of nobody", New(b"later", due="+1000000000"))
    before = dump(caller.client)
    news = [New(payload, OTHER, marker=payload.decode()) for payload in numbered(count)]
    assert caller.enqueue(*news) == answer
    if answer == b"-":
        after = dump(caller.client)
        assert after.pop(caller.reply.encode()) != before.pop(caller.reply.encode())
        assert after == before


@pytest.mark.promise(
    "`max_pending_length` counts all tenant queues and delayed messages; `max_pending_per_tenant` counts one tenant "
    "queue."
)
def test_what_waits_anywhere_counts_and_what_is_held_does_not(caller: Caller):
    """In the line without a tenant, in tenants' lines, and for its time."""
    caller.settings.limit = 3
    assert caller.enqueue(New(b"first", OWN), b"second", New(b"third", due="+1000000000")) == b"111"
    assert caller.enqueue(b"fourth") == b"-"
    assert caller.claim().taken
    assert caller.enqueue(b"fourth") == b"1"
    assert caller.enqueue(New(b"fifth", due="+1000000000")) == b"-"


def test_duplicates_need_no_room(caller: Caller):
    """They neither are refused nor take somebody's place."""
    caller.settings.limit = caller.settings.tenant_limit = 2
    caller.enqueue(New(b"first", OWN, marker="a"))
    assert caller.enqueue(New(b"x", OWN, marker="a"), New(b"second", OWN, marker="b")) == b"01"
    assert caller.enqueue(New(b"x", OWN, marker="a"), New(b"x", OWN, marker="b")) == b"00"
    assert caller.enqueue(New(b"x", OWN, marker="a"), New(b"third", OWN, marker="c")) == b"-"


@pytest.mark.promise(
    "`max_pending_length` counts all tenant queues and delayed messages; `max_pending_per_tenant` counts one tenant "
    "queue."
)
def test_a_tenant_has_a_limit_of_its_own(caller: Caller):
    """One that is full keeps nobody else out, but for the rest of its chunk."""
    caller.settings.tenant_limit = 2
    caller.enqueue_for("acme", *numbered(2))
    assert caller.enqueue(New(b"x", OWN)) == b"-"
    assert caller.enqueue(New(b"x", OTHER), New(b"x", OWN)) == b"-"
    assert caller.enqueue(New(b"first", OTHER), New(b"second", OTHER)) == b"11"
    assert caller.enqueue(*numbered(3)) == b"111"
    caller.settle(caller.claim(3).taken)
    assert caller.enqueue(New(b"third", OWN)) == b"1"
    assert faults(caller.client) == []


def test_the_lower_of_two_limits_counts(caller: Caller):
    """That of the tenant or that of all."""
    caller.settings.limit, caller.settings.tenant_limit = 3, 2
    assert caller.enqueue(*[New(b"x", OWN)] * 3) == b"-"
    assert caller.enqueue(*[New(b"x", OWN)] * 2) == b"11"
    assert caller.enqueue(*[New(b"x", OTHER)] * 2) == b"-"
    assert caller.enqueue(New(b"x", OTHER)) == b"1"


# Limits that drop


def test_the_oldest_of_the_line_make_room(caller: Caller):
    """The answer names them, the oldest first."""
    ids = caller.publish_all(numbered(4))
    drop_beyond(caller, 4)
    assert caller.enqueue(b"a", b"b") == b"11" + ids[0] + ids[1]
    assert waiting(caller) == [b"message 2", b"message 3", b"a", b"b"]


def test_a_line_just_below_its_limit_drops_nobody(caller: Caller):
    """The limit itself is allowed."""
    drop_beyond(caller, 4, 2)
    assert caller.enqueue(*numbered(2), New(b"x", OWN), New(b"y", OWN)) == b"1111"


def test_the_longest_line_gives_way(caller: Caller):
    """No matter who publishes; of queues of equal length, new messages counted, the publisher's own."""
    drop_beyond(caller, 6)
    zeta = caller.enqueue_for("zeta", *numbered(4))
    own = caller.enqueue_for("acme", b"old")
    caller.publish(b"of nobody")
    assert caller.enqueue(New(b"x", b"newcomer")) == b"1" + zeta[0]
    assert caller.enqueue(New(b"later", due="+1000000000")) == b"1" + zeta[1]
    assert waiting(caller, OTHER) == numbered(4)[2:]
    assert caller.enqueue(New(b"new", OWN)) == b"1" + own[0]
    assert waiting(caller, OWN) == [b"new"]
    assert faults(caller.client) == []


def test_several_leave_from_the_longest_lines_in_turn(caller: Caller):
    """As if they were dropped one by one; the answer names those of a line together, the oldest first."""
    ids = {tenant: caller.enqueue_for(tenant, *numbered(count)) for tenant, count in (("a", 5), ("b", 3), ("c", 1))}
    nobody = caller.publish_all(numbered(4))
    drop_beyond(caller, 13)
    answer = caller.enqueue(*[New(b"x", OWN)] * 4)
    assert answer == b"1111" + b"".join([*nobody[:2], *ids["a"][:2]])
    assert [len(waiting(caller, tenant)) for tenant in (OWN, b"", b"a", b"b", b"c")] == [4, 2, 3, 3, 1]
    assert faults(caller.client) == []


def test_a_line_that_is_dropped_to_its_end_leaves_the_ring(caller: Caller):
    """Unless messages of its tenant have come back; and where nothing can be dropped a chunk is refused."""
    drop_beyond(caller, 2)
    caller.enqueue_for("acme", b"a")
    caller.enqueue_for("zeta", b"b")
    caller.enqueue(New(b"c", b"newcomer"))
    assert sorted(read(caller.client).ring) == ["newcomer", "zeta"]
    assert faults(caller.client) == []
    caller.client.flushall()
    caller.hold(b"a", tenant="acme")
    caller.expire()
    caller.enqueue_for("zeta", b"b")
    caller.claim()
    caller.enqueue_for("acme", b"c")
    caller.enqueue_for("zeta", b"d")
    caller.enqueue(New(b"e", b"newcomer"))
    assert sorted(read(caller.client).ring) == ["acme", "newcomer", "zeta"]
    assert faults(caller.client) == []
    drop_beyond(caller, 3)
    caller.client.flushall()
    caller.enqueue(*[New(b"x", due="+1000000000")] * 2)
    assert caller.enqueue(*[New(b"x", OWN)] * 2) == b"-"


@pytest.mark.promise(
    "In a full queue, `drop_oldest` drops the oldest message of the longest tenant queue, so that no tenant locks out "
    "others."
)
def test_the_longest_of_very_many_lines_is_found_by_a_few_looks(caller: Caller):
    """A tenant with more than half of all messages is remembered, and so is one that lost messages; no scan."""
    small = [f"tenant {number}".encode() for number in range(300)]
    drop_beyond(caller, 1_000)
    caller.enqueue(*[New(b"x", tenant) for tenant in small])
    hog = caller.enqueue_for("acme", *numbered(700))
    before = caller.client.info("commandstats")["cmdstat_llen"]["calls"]
    for place in range(20):
        assert caller.enqueue(New(b"y", small[place])) == b"1" + hog[place]
    looks = caller.client.info("commandstats")["cmdstat_llen"]["calls"] - before
    assert looks <= 20 * 115
    assert caller.client.get(KEYS.longest) == OWN
    assert 0 < caller.client.pttl(KEYS.longest) <= 86_400_000
    assert caller.sweep("pending", "acme") == b"680 "
    assert caller.enqueue(New(b"z", OWN)) == b"1"
    assert faults(caller.client) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_short_list_does_not_give_way_for_a_longer_one_that_was_not_in_the_sample(caller: Caller, seed: int):
    """The long one came when nobody dropped messages, so it is not remembered; the average tells that it is there."""
    small = [f"tenant {number}".encode() for number in range(500)]
    hog = caller.enqueue_for("acme", *numbered(1_000))
    caller.enqueue(*[New(b"x", tenant) for tenant in small])
    drop_beyond(caller, 1_500)
    assert caller.enqueue(New(b"y", b"newcomer %d" % seed)) == b"1" + hog[0]
    assert caller.client.zcard(KEYS.tenant_ring) == 502


def test_many_leave_though_every_line_has_one_message(caller: Caller):
    """A chunk finds as many lines as it needs, beyond those that a single message looks at."""
    drop_beyond(caller, 500)
    caller.enqueue(*[New(b"x", b"tenant %d" % number) for number in range(500)])
    answer = caller.enqueue(*[New(b"y", OWN)] * 400)
    assert (answer[:400], len(answer)) == (b"1" * 400, 400 + 16 * 400)
    assert caller.client.zcard(KEYS.tenant_ring) == 101
    assert faults(caller.client) == []


def test_the_oldest_of_a_tenant_make_room_in_its_line(caller: Caller):
    """Its own limit is reached; the others are not asked."""
    own = caller.enqueue_for("acme", *numbered(3))
    caller.enqueue_for("zeta", *numbered(3))
    drop_beyond(caller, tenant_limit=3)
    assert caller.enqueue(New(b"a", OWN), New(b"b", OWN)) == b"11" + own[0] + own[1]
    assert waiting(caller, OWN) == [b"message 2", b"a", b"b"]
    assert waiting(caller, OTHER) == numbered(3)
    assert faults(caller.client) == []


def test_a_tenant_that_makes_room_by_one_rule_has_made_it_by_the_other(caller: Caller):
    """With both limits reached, as many leave as must, and none twice over."""
    own = caller.enqueue_for("acme", *numbered(3))
    caller.enqueue_for("zeta", *numbered(3))
    drop_beyond(caller, 6, 3)
    assert caller.enqueue(New(b"a", OWN)) == b"1" + own[0]
    assert waiting(caller, OWN) == [b"message 1", b"message 2", b"a"]


@pytest.mark.parametrize("order", [(OWN, OTHER), (OTHER, OWN)], ids=["before", "behind"])
def test_room_that_one_tenant_must_make_anyway_is_not_taken_from_another(caller: Caller, order: tuple[bytes, bytes]):
    """Of two tenants in one chunk, one is over its own limit: its leaving is enough for both."""
    own = caller.enqueue_for("acme", *numbered(4))
    caller.enqueue_for("zeta", *numbered(2))
    drop_beyond(caller, 7, 4)
    assert caller.enqueue(*[New(b"x", tenant) for tenant in order]) == b"11" + own[0]
    assert waiting(caller, OTHER) == [*numbered(2), b"x"]


@pytest.mark.parametrize(
    "tenant, rule",
    [(b"", "limit"), (OWN, "limit"), (OWN, "tenant_limit")],
    ids=["no tenant", "a tenant", "a tenant with its own limit"],
)
def test_a_chunk_never_drops_its_own_messages(caller: Caller, tenant: bytes, rule: str):
    """Larger than the limit, it is refused."""
    drop_beyond(caller, **{rule: 3})
    caller.enqueue(New(b"old", tenant))
    assert caller.enqueue(*[New(payload, tenant) for payload in numbered(4)]) == b"-"
    assert caller.enqueue(*[New(payload, tenant) for payload in numbered(3)])[:3] == b"111"
    assert waiting(caller, tenant) == numbered(3)


@pytest.mark.parametrize("rule", ["limit", "tenant_limit"])
def test_a_lowered_limit_is_reached_in_steps_of_a_thousand(caller: Caller, rule: str):
    """No publish blocks the server to drop a whole backlog."""
    ids = caller.enqueue_for("acme", *numbered(2_500))
    drop_beyond(caller, **{rule: 10})
    assert caller.enqueue(New(b"newest", OWN)) == b"1" + b"".join(ids[:1_000])
    assert caller.enqueue(New(b"newest", OWN)) == b"1" + b"".join(ids[1_000:2_000])
    assert len(caller.enqueue(New(b"newest", OWN))) == 1 + 16 * 493
    assert len(waiting(caller, OWN)) == 10
    assert faults(caller.client) == []


def test_two_tenants_with_a_backlog_drop_a_thousand_between_them(caller: Caller):
    """However many lines there are, one publish drops no more."""
    for tenant in ("acme", "zeta"):
        caller.enqueue_for(tenant, *numbered(800))
    drop_beyond(caller, tenant_limit=1)
    answer = caller.enqueue(New(b"x", OWN), New(b"x", OTHER))
    assert len(answer) == 2 + 16 * 1_000
    assert len(waiting(caller, OWN)) + len(waiting(caller, OTHER)) == 602
    assert faults(caller.client) == []


def test_what_is_dropped_leaves_no_numbers_behind(caller: Caller):
    """A message that had come back takes its entry with it."""
    held = caller.hold(*numbered(2), tenant="acme")
    caller.requeue(held)
    drop_beyond(caller, tenant_limit=1)
    assert caller.enqueue(New(b"new", OWN)) == b"1" + held[0].id + held[1].id
    assert not caller.client.exists(KEYS.deliveries)
    assert faults(caller.client) == []


# The wake-up key


@pytest.mark.parametrize("tenant", [b"", OWN], ids=["no tenant", "a tenant"])
def test_a_chunk_notifies_once_if_its_list_was_empty(caller: Caller, tenant: bytes):
    """Behind others it does not: they have a token, or somebody who holds one."""
    caller.enqueue(New(b"first", tenant), New(b"second", tenant))
    assert caller.tokens() == 1
    caller.take_token()
    caller.enqueue(New(b"third", tenant))
    assert caller.tokens() == 0
    caller.enqueue(New(b"of another", OTHER))
    assert caller.tokens() == 1
    caller.enqueue(New(b"of yet another", b"third"))
    assert caller.tokens() == 1


def test_what_brings_no_work_does_not_ring(caller: Caller):
    """Duplicates, and a chunk that was refused."""
    caller.publish(b"first", marker="a")
    caller.claim()
    caller.take_token()
    caller.settings.limit = 2
    assert caller.enqueue(New(b"x", marker="a")) == b"0"
    assert caller.enqueue(*numbered(3)) == b"-"
    assert caller.tokens() == 0


def test_a_delay_rings_if_it_is_the_next_to_end(caller: Caller):
    """A consumer that sleeps until a later time must learn of an earlier one."""
    tokens = []
    for due in ("+3000000000", "+5000000000", "+2000000000"):
        caller.take_token()
        caller.enqueue(New(b"x", due=due))
        tokens.append(caller.tokens())
    assert tokens == [1, 0, 1]


# Repetitions


@pytest.mark.parametrize("form", ["bare", "ready", "full"])
def test_a_chunk_that_is_sent_again_counts_once(caller: Caller, other: Caller, form: str):
    """The same answer, though its messages have been taken and its markers have ended."""
    base = fresh_base()
    news = [New(payload, marker=None if form == "bare" else payload.decode()) for payload in numbered(3)]
    assert caller.enqueue(*news, base=base, form=form) == b"111"
    assert len(other.claim(3).taken) == 3
    for payload in numbered(3):
        caller.client.delete(KEYS.deduplication(payload.decode()))
    assert caller.repeat() == b"111"
    assert not caller.client.exists(KEYS.pending)


def test_a_repetition_prolongs_the_answer(caller: Caller):
    """It is a write, so that a WAIT behind it waits for something."""
    caller.enqueue(b"first")
    caller.client.pexpire(caller.reply, 1_000)
    assert caller.repeat() == b"1"
    assert caller.client.pttl(caller.reply) > 1_000


@pytest.mark.parametrize("due", ["", "0", "1", "+0", "-1"])
def test_what_is_due_by_now_enters_at_once(caller: Caller, due: str):
    """A time in the past is no delay."""
    caller.enqueue(New(b"first", OWN, due=due))
    assert waiting(caller, OWN) == [b"first"]
    assert not caller.client.exists(KEYS.delayed, KEYS.delayed_messages)


@pytest.mark.parametrize("relative", [True, False], ids=["from now", "by the server's clock"])
def test_what_is_due_later_waits_for_its_time(caller: Caller, relative: bool):
    """To the microsecond, and in no line."""
    before = caller.now_us()
    due_at = before + HOUR_US
    caller.enqueue(New(b"first", OWN, due=f"+{HOUR_US}" if relative else str(due_at)))
    (found,) = caller.due_times().values()
    assert due_at <= found <= caller.now_us() + HOUR_US if relative else found == due_at
    assert caller.client.zscore(KEYS.leases, "d") == found
    assert not caller.client.exists(KEYS.tenant_pending("acme"), KEYS.tenant_ring, KEYS.tenant_backlog)
    assert faults(caller.client) == []
