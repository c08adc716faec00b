"""Large batches: the limits hold, and no message is lost."""

import re
from collections.abc import Callable, Sequence

import pytest
import redis

from redis_message_queue.stored import envelope
from tests.lua.group_situations import holding
from tests.lua.scripts_runner import KEYS, Caller, New, Taken, dump, new_id, numbered
from tests.lua.situations import hold_and_let_come_back, title
from tests.lua.state import faults

pytestmark = pytest.mark.topic("Cost and memory")

# What the protocol may put into one call. Lua unpacks no more than 7,999 values, and half as many pairs.
MOST = 1_000

VERBS = {
    "settle": lambda caller, held: caller.settle(held),
    "settle into a list": lambda caller, held: caller.settle(held, kept=KEYS.completed),
    "requeue": lambda caller, held: caller.requeue(held),
    "renew": lambda caller, held: caller.renew(held),
}
every_tenant = pytest.mark.parametrize("tenant", [None, "acme"])


def hold_many(caller: Caller, count: int) -> list[Taken]:
    caller.publish_all(numbered(count))
    taken: list[Taken] = []
    while len(taken) < count:
        taken += caller.claim(MOST).taken
    return taken


@pytest.mark.parametrize("count", [999, 1_000])
@every_tenant
def test_a_claim_takes_up_to_a_thousand(caller: Caller, count: int, tenant: str | None):
    """In their order; what is wanted beyond is left for the next call."""
    caller.enqueue_all(New(payload, (tenant or "").encode()) for payload in numbered(1_500))
    claimed = caller.claim(count)
    assert claimed.payloads == numbered(count)
    assert caller.repeat() == claimed
    assert caller.client.hlen(KEYS.processing) == len(caller.deadlines()) == count


def test_a_claim_of_more_is_refused(caller: Caller):
    """A caller that forgets the limit hears of it, and has changed nothing."""
    caller.publish_all(numbered(3))
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError, match="at most 1,000 messages"):
        caller.claim(1_001)
    assert dump(caller.client) == before


def test_a_claim_takes_up_to_a_thousand_expired_ones(caller: Caller):
    """In their order, with new numbers."""
    hold_many(caller, 1_500)
    caller.expire()
    claimed = caller.claim(1_000)
    assert claimed.payloads == numbered(1_000)
    assert {one.attempts for one in claimed.taken} == {2}
    assert caller.claim(1_000).payloads == numbered(1_500)[1_000:]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("delivered", ["once", "twice"])
@every_tenant
def test_a_thousand_messages_go_in_one_call(caller: Caller, verb, delivered: str, tenant: str | None):
    """As many as a claim may take."""
    held = caller.hold(*numbered(MOST), tenant=tenant)
    if delivered == "twice":
        caller.expire()
        held = caller.claim(MOST).taken
    assert verb(caller, held) == b"1" * MOST
    assert faults(caller.client) == []


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_thousand_messages_that_came_back_go_in_one_call(caller: Caller, verb):
    """Late but first, all of them."""
    held = hold_and_let_come_back(caller, *numbered(MOST))
    assert verb(caller, held) == b"1" * MOST
    assert faults(caller.client) == []


def test_a_thousand_messages_that_are_given_back_keep_their_order(caller: Caller):
    """They stand at the head as they stood before."""
    caller.publish_all(numbered(1_100))
    caller.requeue(caller.claim(MOST).taken)
    assert caller.claim(MOST).payloads + caller.claim(MOST).payloads == numbered(1_100)


def test_a_thousand_settled_messages_lie_in_the_list_newest_left(caller: Caller):
    """None is missing."""
    caller.settle(caller.hold(*numbered(MOST)), kept=KEYS.completed)
    assert caller.client.lrange(KEYS.completed, 0, -1) == numbered(MOST)[::-1]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_one_message_more_is_refused(caller: Caller, verb):
    """A caller that forgets the limit hears of it, and has changed nothing."""
    held = [*caller.hold(*numbered(MOST)), (new_id(), 1)]
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError, match="at most 1,000 messages"):
        verb(caller, held)
    assert dump(caller.client) == before


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("count", [4_000, 8_000])
def test_more_than_can_be_done_is_done_whole_or_not_at_all(caller: Caller, verb, count: int):
    """No lease is lost on the way to an error."""
    held = [(new_id(), 1) for _ in range(count)]
    stored = {id: envelope.head(id) + bytes(8) + b"payload" for id, _ in held}
    caller.client.hset(KEYS.processing, mapping=stored)
    caller.client.zadd(KEYS.leases, {id: place for place, id in enumerate(stored)})
    before = dump(caller.client)
    try:
        assert verb(caller, held) == b"1" * count
    except redis.ResponseError:
        assert dump(caller.client) == before


# Dead letters in the way


def foreign(caller: Caller) -> None:
    with caller.client.pipeline(transaction=False) as pipe:
        for payload in numbered(5_000):
            pipe.lpush(KEYS.pending, payload)
        pipe.execute()


def expired(caller: Caller) -> None:
    hold_many(caller, 5_000)
    caller.expire()


def returned(caller: Caller) -> None:
    held = hold_many(caller, 5_000)
    for start in range(4_000, -1, -MOST):
        caller.requeue(held[start : start + MOST])


@pytest.mark.promise("A claim never returns empty while a deliverable message exists.")
@pytest.mark.parametrize("poison, count", [(foreign, 1), (foreign, 10), (expired, 1), (returned, 10)], ids=title)
def test_thousands_of_dead_letters_are_worked_off_in_several_calls(caller: Caller, poison, count: int):
    """At most a thousand a call, in their order and none lost; then the message behind them is delivered."""
    poison(caller)
    caller.settings.most = 1
    caller.publish(b"behind them")
    dead = []
    while (claimed := caller.claim(count)).again:
        assert claimed.taken == ()
        assert len(claimed.dead) == 1_000
        dead += claimed.dead
    assert claimed.payloads == [b"behind them"]
    assert len(dead + list(claimed.dead)) == 5_000
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == numbered(5_000)[::-1]
    assert caller.client.hlen(KEYS.processing) == 1
    assert not caller.client.exists(KEYS.pending, KEYS.deliveries)


def test_the_calls_between_can_be_sent_again(caller: Caller):
    """The repetition says "again" too, names the same dead letters, and moves no more."""
    foreign(caller)
    claimed = caller.claim()
    before = dump(caller.client)
    assert caller.repeat() == claimed
    assert claimed.again
    assert dump(caller.client) == before


def test_thousands_of_leases_without_bodies_are_worked_off_in_several_calls(caller: Caller):
    """They are tidied away a thousand a call."""
    hold_many(caller, 2_500)
    caller.client.delete(KEYS.processing)
    caller.expire()
    assert [caller.claim().again for _ in range(3)] == [True, True, False]
    assert not caller.client.exists(KEYS.leases)


# Bytes


MEGABYTE = b"x" * 1_000_000


@pytest.mark.parametrize("where", ["in the line", "of a tenant", "came back", "was due"])
@pytest.mark.parametrize("before", [0, 100], ids=["", "behind small ones"])
def test_a_claim_takes_few_large_messages(caller: Caller, where: str, before: int):
    """Four megabytes or so, in their order; the others are taken by the next ones, and the first is never refused."""
    texts = [*numbered(before), *[MEGABYTE] * 10]
    if where == "was due":
        for text in texts:
            caller.enqueue(New(text, due="+1000"))
        caller.pass_delays()
    else:
        for text in texts:
            caller.enqueue(New(text, b"acme" if where == "of a tenant" else b""))
    if where == "came back":
        while caller.claim(1_000).taken:
            pass
        caller.expire()
    sizes, seen = [], []
    for _ in range(100):
        claimed = caller.claim_at_last(1_000)
        if not claimed.taken:
            break
        sizes.append(sum(map(len, claimed.payloads)))
        seen += claimed.payloads
    assert seen == texts
    assert max(sizes) <= 5_000_000
    assert faults(caller.client) == []


def test_a_message_that_is_larger_than_any_bound_is_taken_alone(caller: Caller):
    caller.publish_all([b"y" * 9_000_000, b"small", b"y" * 9_000_000])
    assert [len(caller.claim(10).taken) for _ in range(3)] == [1, 2, 0]


def test_a_claim_reads_no_more_of_the_line_than_it_may_take(caller: Caller):
    """What a script reads is copied: 200 messages of a megabyte would be 200 megabytes."""
    caller.publish_all([MEGABYTE] * 40)
    caller.client.config_resetstat()
    assert len(caller.claim(1_000).taken) == 4
    assert caller.client.info("commandstats")["cmdstat_lrange"]["calls"] <= 3  # the first of one message


# Plain runs are taken whole: a megabyte letter by letter takes a fifth of a second.
QUOTED = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"')


def elements_read(caller: Caller, act: Callable[[], object]) -> dict[str, int]:
    """How many elements of lists and hashes the scripts of an act read, by command."""
    seen = dict.fromkeys(("LRANGE", "HMGET"), 0)
    with caller.client.monitor() as overheard:
        act()
        caller.client.ping()
        # Not by `next_command`, which does not tell a space in an id from one between two words.
        while (words := QUOTED.findall(overheard.connection.read_response()))[0] != b"PING":
            if words[0] == b"LRANGE":
                seen["LRANGE"] += int(words[3]) - int(words[2]) + 1
            elif words[0] == b"HMGET" and not words[1].endswith(b"meta"):
                seen["HMGET"] += len(words) - 2
    return seen


@pytest.mark.promise("A script reads no more than about 4 MB of messages, or one message if it is larger.")
@pytest.mark.parametrize("where", ["in the line", "of a tenant", "came back", "was due"])
def test_a_claim_reads_few_large_messages_behind_small_ones(caller: Caller, where: str):
    """A list does not tell how large its next elements are: 64 of them, after 73 small ones, took 0.2 s."""
    texts = [*numbered(73), *[MEGABYTE] * 30]
    tenant, due = b"acme" if where == "of a tenant" else b"", "+1000" if where == "was due" else ""
    for text in texts:
        caller.enqueue(New(text, tenant, due=due))
    if where == "was due":
        caller.pass_delays()
    if where == "came back":
        while caller.claim(1_000).taken:
            pass
        caller.expire()
    for command, count in elements_read(caller, lambda: caller.claim(1_000)).items():
        assert sum(map(len, texts[:count])) <= 4_001_000, command


@pytest.mark.parametrize("journaled", [False, True])
def test_a_batch_reads_few_large_messages_behind_small_ones(caller: Caller, journaled: bool):
    """Filling, releasing and acknowledging alike."""
    if journaled:
        caller.open_journal()
    texts = [*numbered(73), *[MEGABYTE] * 30]
    caller.publish_all(texts)
    holder = holding(caller)
    read = elements_read(caller, lambda: holder.fill_batch(1_000))
    assert sum(map(len, texts[: read["LRANGE"]])) <= 4_001_000
    while holder.fill_batch(1_000)[1]:
        pass
    holder.seal_batch()
    assert elements_read(caller, holder.release_batch)["LRANGE"] <= 4  # the large ones are last
    while holder.release_batch() != [0, 0]:
        pass
    assert elements_read(caller, lambda: caller.claim(1_000))["LRANGE"] <= 1 + 73 + 4  # the first one twice


def test_a_queue_forgets_its_large_messages_when_it_is_empty(caller: Caller):
    """And then reads small ones many at a time again."""
    caller.publish_all([MEGABYTE, *numbered(100)])
    assert caller.client.hget(KEYS.meta, "largest") == b"1000025"
    taken = caller.claim(1_000).taken + caller.claim(1_000).taken
    assert (len(taken), caller.claim(1_000).taken) == (101, ())
    assert caller.client.hexists(KEYS.meta, "largest")  # they may come back
    caller.settle(taken)
    caller.claim(1_000)
    assert not caller.client.hexists(KEYS.meta, "largest")


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"nan", b"inf", b"1e300", b"9" * 400])
def test_a_foreign_size_does_no_harm(caller: Caller, value: bytes):
    caller.client.hset(KEYS.meta, "largest", value)
    caller.publish_all(numbered(20))
    caller.enqueue(New(b"of acme", b"acme"))
    assert len(caller.claim(1_000).taken) == 21


@pytest.mark.parametrize("number", [2, 64, 65, 100, 128, 129, 300])
def test_messages_that_are_claimed_together_have_one_lease_each_in_their_order(caller: Caller, number: int):
    """However Redis keeps them: a short sorted set is a list."""
    caller.publish_all(numbered(number))
    held = caller.claim(number).taken
    assert caller.client.zrange(KEYS.leases, 0, -1) == [one.token for one in held]
    assert faults(caller.client) == []


CHOICES: dict[str, Callable[[tuple[Taken, ...]], Sequence[Taken]]] = {
    "all": lambda held: held,
    "the middle": lambda held: held[10:-10],
    "backwards": lambda held: held[::-1],
    "every second": lambda held: held[::2],
}


@pytest.mark.parametrize("number", [50, 200])
@pytest.mark.parametrize("choice", CHOICES)
def test_many_are_settled_at_once_and_the_others_stay(caller: Caller, other: Caller, choice: str, number: int):
    """Whether they are neighbours among the leases or not, beside those of another consumer."""
    caller.publish_all(numbered(number + 20))
    before, held, after = other.claim(10).taken, caller.claim(number).taken, other.claim(10).taken
    chosen = CHOICES[choice](held)
    assert caller.settle(chosen) == b"1" * len(chosen)
    assert caller.repeat() == b"1" * len(chosen)
    left = [one for one in (*before, *held, *after) if one not in chosen]
    assert caller.client.zrange(KEYS.leases, 0, -1) == [one.token for one in left]
    assert caller.client.hlen(KEYS.processing) == len(left)
    assert faults(caller.client) == []


def test_a_lost_lease_among_many_is_not_settled(caller: Caller, other: Caller):
    caller.publish_all(numbered(50))
    held = caller.claim(50).taken
    caller.requeue(held[20:21])
    assert other.claim().taken[0].id == held[20].id
    assert caller.settle(held) == b"1" * 20 + b"0" + b"1" * 29
    assert caller.client.hkeys(KEYS.processing) == [held[20].id]
