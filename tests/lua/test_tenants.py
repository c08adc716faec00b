"""Tenants take turns, whatever anyone's backlog is; the ring holds exactly the tenants with waiting messages."""

import random
from collections import Counter
from functools import partial

import pytest
import redis

from tests.depth import often
from tests.lua.scripts_runner import HOUR_US, KEYS, Caller, Claimed, New, numbered
from tests.lua.situations import age, hold_and_let_come_back
from tests.lua.stage import Stage
from tests.lua.state import faults, read
from tests.tables import row

pytestmark = pytest.mark.topic("Tenants")

NOBODY = ""  # stands for messages without a tenant

# Names that sort before, behind and between others, by bytes and by letters.
NAMES = {
    "letters": ["a", "b", "c", "d"],
    "upper and lower case": ["a", "B", "b", "A"],
    "prefixes": ["a", "aa", "aaa", "aaaa"],
    "bytes of all kinds": ["\x00", "\x01\x00", "ÿ", "\U0010ffff"],
    "separators": ["::", "a::b", "{a}", " "],
    "names of alarms": ["r", "d", "rr", "dd"],
}
every_kind_of_name = pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)


def enter(caller: Caller, tenant: str, *payloads: bytes) -> None:
    if tenant:
        caller.enqueue_for(tenant, *payloads)
    else:
        caller.publish_all(payloads)


def turns(claims: list[Claimed]) -> list[str]:
    return [one.tenant or NOBODY for claimed in claims for one in claimed.taken]


def until_it_is_told(caller: Caller, count: int = 1) -> list[Claimed]:
    """Claim as the protocol does: at once again, as long as the answer asks for it."""
    answers = [caller.claim(count)]
    while answers[-1].again:
        assert len(answers) < 20
        answers.append(caller.claim(count))
    return answers


# Turns


@pytest.mark.promise(
    "Each tenant has its own queue, and of T waiting tenants each is served within T claims, whatever the backlogs."
)
@every_kind_of_name
def test_a_tenants_next_message_comes_within_a_round(names: list[str], caller: Caller):
    """A tenant with a thousand messages is served as often as one with ten."""
    caller.enqueue_for(names[0], *numbered(1_000))
    for name in names[1:]:
        caller.enqueue_for(name, *numbered(10))
    served = turns(caller.claim_one_by_one(40))
    for start in range(0, 40, 4):
        assert sorted(served[start : start + 4]) == sorted(names)


@pytest.mark.promise("Batches and `run()` serve tenants round-robin as single claims do.")
@pytest.mark.parametrize("others", [0, 10], ids=["tenants alone", "with messages without a tenant"])
def test_a_batch_takes_turns_as_single_claims_do(others: int, stage: Stage, subtests: pytest.Subtests):
    """However many are taken at once, they come in the same order and leave the same ring."""
    for kind, names in NAMES.items():
        situation = partial(enter_with_weights, names=names, others=others)
        alone, _ = stage.prepare(situation)
        expected = served_by(alone, 1)
        for count in (2, 3, 7, 40):
            with row(subtests, names=kind, count=count):
                caller, _ = stage.prepare(situation)
                assert served_by(caller, count) == expected


def enter_with_weights(caller: Caller, names: list[str], others: int) -> None:
    caller.weigh(**{names[1]: 3, names[2]: 2})
    for name, length in zip((*names, NOBODY), (9, 25, 2, 14, others), strict=True):
        enter(caller, name, *numbered(length, name))


def served_by(caller: Caller, size: int) -> tuple[list[tuple[str | None, bytes]], dict[str, float]]:
    """Forty messages in the order of their claims, so many at a time, and the ring that is left."""
    order: list[tuple[str | None, bytes]] = []
    while len(order) < 40:
        order += [(one.tenant, one.payload) for one in caller.claim(min(size, 40 - len(order))).taken]
    assert faults(caller.client) == []
    return order, read(caller.client).ring


@pytest.mark.promise("Batches and `run()` serve tenants round-robin as single claims do.")
@every_kind_of_name
def test_a_batch_without_weights_takes_turns_as_single_claims_do(names: list[str], client: redis.Redis):
    """Also where single claims go the shortest way; tenants run dry one after the other."""
    orders = []
    for size in (1, 5):
        client.flushall()
        caller = Caller(client)
        for name, length in zip(names, (3, 12, 1, 7), strict=True):
            enter(caller, name, *numbered(length, name))
        order: list[tuple[str | None, bytes]] = []
        while len(order) < 20:
            order += [(one.tenant, one.payload) for one in caller.claim(size).taken]
            caller.enqueue_for(names[2], b"comes again") if len(order) == 10 else None
        orders.append((order, read(client).ring))
        assert faults(client) == []
    assert orders[0] == orders[1]


@pytest.mark.promise("Messages of one tenant are delivered in order.")
@every_kind_of_name
def test_messages_of_a_tenant_keep_their_order(names: list[str], caller: Caller):
    """First in, first out, within each line."""
    for name in names:
        caller.enqueue_for(name, *numbered(30))
    taken = [one for _ in range(12) for one in caller.claim(10).taken]
    for name in names:
        assert [one.payload for one in taken if one.tenant == name] == numbered(30)
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.tenant_backlog)


@pytest.mark.promise(
    "Each tenant has its own queue, and of T waiting tenants each is served within T claims, whatever the backlogs."
)
@pytest.mark.parametrize("weights", [{}, {"m": 3, "x": 2}], ids=["all alike", "weighted"])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_waits_longer_than_a_round_whoever_comes_and_goes(seed: int, weights: dict[str, int], caller: Caller):
    """Between any two turns of a waiting tenant, no other tenant has more turns than its weight.

    Some have a backlog; some publish one message at a time, leave the ring with it and come back at once, in every
    order and with names on both sides of everybody else's.
    """
    chance = random.Random(seed)
    steady, restless = ["b", "m", "y"], ["a", "c", "n", "x", "z"]
    (steady if seed % 2 else restless).append(NOBODY)
    if weights:
        caller.weigh(**weights)
    for name in steady:
        enter(caller, name, *numbered(60))
    since: dict[str, Counter[str]] = {name: Counter() for name in steady}  # who was served since this one was
    for _ in range(120):
        for name in chance.sample(restless, chance.randint(0, len(restless))):
            if name not in since:
                enter(caller, name, b"one at a time")
                since[name] = Counter()
        (served,) = turns([caller.claim()])
        del since[served]
        for name, others in since.items():
            others[served] += 1
            assert others[served] <= weights.get(served, 1), (name, others)
        if served in steady:
            since[served] = Counter()
    assert faults(caller.client) == []


@pytest.mark.promise("A tenant that leaves and returns gains no turns, and new tenants delay nobody.")
@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("backlog", [NOBODY, "b"], ids=["no tenant", "a tenant"])
def test_whoever_comes_back_between_two_claims_does_not_keep_others_waiting(caller: Caller, backlog: str, others: int):
    """Tenants with one message at a time, always there in time for the next claim, get no more than their turns."""
    enter(caller, backlog, *numbered(20))
    comers = ["a", "c", "d"][:others]
    served = []
    for _ in range(12):
        for name in comers:
            if not caller.client.exists(KEYS.tenant_pending(name)):
                caller.enqueue_for(name, b"one at a time")
        served += turns([caller.claim()])
    for start in range(12 - others):
        assert backlog in served[start : start + others + 1], served


@pytest.mark.promise("A tenant that leaves and returns gains no turns, and new tenants delay nobody.")
def test_a_tenant_that_ends_a_batch_and_comes_back_is_not_served_again_before_messages_without_one(caller: Caller):
    """They had a turn in that batch, but before the tenant: so they stay in the ring."""
    caller.publish_all(numbered(9))
    served = []
    for count in (1, 2, 2):
        caller.enqueue_for("a", b"one at a time")
        served += turns([caller.claim(count)])
    assert served == ["a", NOBODY, "a", NOBODY, "a"]


@pytest.mark.promise("A tenant that leaves and returns gains no turns, and new tenants delay nobody.")
def test_a_newcomer_waits_for_one_round_and_no_longer(caller: Caller):
    """It goes behind those who wait already, and before anyone has a second turn."""
    for name in ("a", "b", "c"):
        caller.enqueue_for(name, *numbered(9))
    assert turns(caller.claim_one_by_one(4)) == ["a", "b", "c", "a"]
    caller.enqueue_for("newcomer", *numbered(9))
    assert sorted(turns(caller.claim_one_by_one(4))) == ["a", "b", "c", "newcomer"]
    assert sorted(turns(caller.claim_one_by_one(4))) == ["a", "b", "c", "newcomer"]


# Weights


def lead(served: list[str], heavy: str, weight: int) -> list[float]:
    """After each claim, how far the heavy one is from its part of what was served."""
    part = weight / (weight + 1)
    return [served[:place].count(heavy) - place * part for place in range(1, len(served) + 1)]


@pytest.mark.promise(
    "Turns are proportional to weights: with 3 to 1, of any 400 claims 300 go to one tenant and 100 to the other, "
    "within one round."
)
@pytest.mark.parametrize("heavy, light", [("a", "b"), ("b", "a"), ("heavy", NOBODY)], ids=str)
@pytest.mark.parametrize("count", [1, 7])
def test_three_to_one_holds_over_any_window(caller: Caller, heavy: str, light: str, count: int):
    """Of any 400 claims in a row 300 are the heavy one's, give or take one round."""
    caller.weigh(**{heavy: 3})
    enter(caller, heavy, *numbered(900))
    enter(caller, light, *numbered(300))
    served = turns(caller.claim_one_by_one(1_000)) if count == 1 else []
    while len(served) < 1_000:
        served += turns([caller.claim(count)])
    for start in range(600):
        assert 296 <= served[start : start + 400].count(heavy) <= 304


@pytest.mark.promise(
    "Turns are proportional to weights: with 3 to 1, of any 400 claims 300 go to one tenant and 100 to the other, "
    "within one round."
)
@pytest.mark.parametrize("weight", [2, 3, 5, 7, 10, 12, 100])
def test_a_weight_is_the_number_of_turns_in_a_round(caller: Caller, weight: int):
    """At no moment is anyone ahead by more than a turn."""
    caller.weigh(heavy=weight)
    caller.enqueue_for("heavy", *numbered(4 * weight))
    caller.enqueue_for("light", *numbered(4))
    served = turns(caller.claim_one_by_one(3 * (weight + 1)))
    # A turn of a large weight is a little shorter than it should be: 0.4 % with 100.
    assert max(abs(ahead) for ahead in lead(served, "heavy", weight)) <= (1 + 1e-9 if weight <= 12 else 2)


@pytest.mark.promise("A weight applies to every consumer from the next turn on; a weight of 1 removes it.")
def test_a_weight_that_changes_counts_from_the_next_turn_on(caller: Caller):
    """Nothing needs to be set up anew."""
    for name in ("a", "b"):
        caller.enqueue_for(name, *numbered(40))
    assert turns(caller.claim_one_by_one(4)).count("a") == 2
    caller.weigh(a=3)
    assert turns(caller.claim_one_by_one(16)).count("a") == 12
    caller.client.delete(KEYS.weights)
    assert 3 <= turns(caller.claim_one_by_one(8)).count("a") <= 5


def test_a_weight_without_messages_holds_nobody_up(caller: Caller):
    """Turns are for those who wait."""
    caller.weigh(absent=100)
    caller.enqueue_for("a", *numbered(3))
    assert turns(caller.claim_one_by_one(3)) == ["a"] * 3


# Messages without a tenant


@pytest.mark.promise("Messages without a tenant share one queue, which takes turns like a tenant queue.")
@pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])
def test_messages_without_a_tenant_have_a_turn_like_a_tenant(caller: Caller, leased: bool):
    """All of them together, as long as there are tenants."""
    caller.settings.lease_us *= leased
    caller.publish_all(numbered(9))
    for name in ("a", "b"):
        caller.enqueue_for(name, *numbered(4))
    served = turns(caller.claim_one_by_one(12))
    for start in range(0, 12, 3):
        assert sorted(served[start : start + 3]) == [NOBODY, "a", "b"]
    assert turns(caller.claim_one_by_one(5)) == [NOBODY] * 5


def test_the_ring_ends_with_its_last_tenant(caller: Caller):
    """If only messages without a tenant are left, there are no turns after one more claim."""
    caller.publish_all(numbered(3))
    caller.enqueue_for("a", b"x")
    caller.claim(2)
    caller.claim()
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.tenant_backlog)
    assert caller.client.zscore(KEYS.leases, "r") is None
    assert caller.claim().payloads == [b"message 2"]


# Leases that ran out


@pytest.mark.promise("A crashed consumer of one tenant delays no other tenant.")
def test_an_expired_message_returns_to_its_own_tenant(caller: Caller):
    """One tenant's crash delays nobody else: its messages wait for its turns."""
    caller.hold(*numbered(5, "crashed"), tenant="a")
    caller.expire()
    caller.enqueue_for("b", *numbered(5))
    served = turns(caller.claim_one_by_one(10))
    for start in range(0, 10, 2):
        assert sorted(served[start : start + 2]) == ["a", "b"]


@pytest.mark.promise(
    "A message whose lease ended returns to the front of its tenant queue, in order and for that tenant's turn."
)
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("tenant", ["a", NOBODY], ids=["a tenant", "no tenant"])
def test_expired_messages_go_first_in_their_tenants_turn_and_in_their_order(caller: Caller, tenant: str, count: int):
    """They have waited longer than anything in the line."""
    caller.hold(*numbered(3, "old"), tenant=tenant or None)
    enter(caller, tenant, *numbered(3, "new"))
    caller.enqueue_for("other", *numbered(6))
    caller.expire()
    taken = [one for _ in range(12 // count) for one in caller.claim(count).taken]
    own = [one for one in taken if (one.tenant or NOBODY) == tenant]
    assert [one.payload for one in own] == numbered(3, "old") + numbered(3, "new")
    assert [one.origin for one in own] == ["lease"] * 3 + ["queue"] * 3
    assert [one.attempts for one in own] == [2] * 3 + [1] * 3
    assert faults(caller.client) == []


def test_a_message_that_expires_again_goes_behind_those_that_expired_before_it(caller: Caller):
    """The order is that of the deadlines, also among messages that had come back."""
    caller.hold(*numbered(4), tenant="a")
    caller.enqueue_for("b", *numbered(9))
    caller.expire()
    assert turns(caller.claim_one_by_one(4)).count("a") == 2
    caller.expire()
    taken = [one.only for one in caller.claim_one_by_one(8)]
    assert [one.payload for one in taken if one.tenant == "a"] == [
        b"message 2",
        b"message 3",
        b"message 0",
        b"message 1",
    ]


def test_without_tenants_expired_messages_are_leased_anew_at_once(caller: Caller):
    """There are no turns, so nothing needs to be moved."""
    caller.hold(*numbered(3))
    caller.expire()
    assert caller.claim(2).payloads == numbered(2)
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.expired(""))
    assert caller.claim(2).payloads == [b"message 2"]


def test_more_than_a_thousand_expired_leases_come_back_in_several_claims(caller: Caller):
    """Each claim moves a thousand, and nobody has a turn before the last; none is lost, and all come in their order."""
    for start in range(0, 2_500, 500):
        caller.enqueue_for("a", *numbered(2_500)[start : start + 500])
        assert len(caller.claim(500).taken) == 500
    caller.enqueue_for("b", b"one")
    caller.expire()
    assert caller.claim().again
    assert caller.client.zcard(KEYS.expired("a")) == 1_000
    assert faults(caller.client) == []
    assert caller.claim_at_last().payloads == [b"one"]
    taken = [payload for _ in range(3) for payload in caller.claim(1_000).payloads]
    assert taken == numbered(2_500)
    assert faults(caller.client) == []


def test_a_claim_is_never_told_empty_while_expired_leases_lie_behind_a_thousand_that_are_gone(caller: Caller):
    """What nobody holds any more is tidied away a thousand a call; "again" is said until a message is found."""
    caller.hold(*numbered(1_000))
    caller.client.delete(KEYS.processing)
    caller.enqueue_for("a", b"the one that is there")
    caller.claim()
    caller.enqueue_for("ghost", b"x")
    caller.client.delete(KEYS.tenant_pending("ghost"), KEYS.tenant_backlog)
    caller.expire()
    answers = until_it_is_told(caller)
    assert answers[-1].payloads == [b"the one that is there"]


# Dead letters and age, inside lines


@pytest.mark.promise("A message over its delivery limit is dead-lettered with its tenant and costs no tenant a turn.")
@pytest.mark.parametrize("count", [1, 5])
def test_dead_letters_do_not_cost_a_tenant_its_turn(caller: Caller, count: int):
    """The same claim goes on to the tenant's next message, in its line or among those that came back."""
    caller.settings.most = 1
    caller.hold(*numbered(2, "expired"), tenant="a")
    caller.requeue(caller.hold(*numbered(2, "requeued"), tenant="a"))
    caller.expire()
    caller.enqueue_for("a", b"good")
    caller.enqueue_for("b", b"good")
    claims = [caller.claim(count) for _ in range(2)]
    assert sorted(turns(claims)) == ["a", "b"]
    assert [reason for claimed in claims for _, _, reason in claimed.dead] == ["deliveries"] * 4
    assert sorted(caller.client.lrange(KEYS.dead_letter, 0, -1)) == sorted(
        numbered(2, "requeued") + numbered(2, "expired")
    )
    assert faults(caller.client) == []
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.tenant_backlog)


@pytest.mark.promise("A claim that finds an expired message continues with the next one, in any tenant queue.")
def test_what_is_too_old_leaves_every_line_it_waits_in(caller: Caller):
    """Tenants that have nothing else leave the ring with it, and the same call goes on to the next tenant."""
    caller.settings.ttl_us = HOUR_US
    for name in ("a", "b"):
        caller.enqueue_for(name, *numbered(3))
        age(caller, KEYS.tenant_pending(name))
    caller.enqueue_for("c", b"young")
    answers = until_it_is_told(caller, 2)
    assert answers[-1].payloads == [b"young"]
    assert sum(len(claimed.dead) for claimed in answers) == 6
    assert {reason for claimed in answers for _, _, reason in claimed.dead} == {"expired"}
    assert faults(caller.client) == []
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.tenant_backlog)


@pytest.mark.promise("A message over its delivery limit is dead-lettered with its tenant and costs no tenant a turn.")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tenant_with_nothing_to_deliver_shifts_nobodys_turn(caller: Caller, count: int):
    """A batch goes on to the next tenant in the ring, as single claims would."""
    caller.settings.most = 1
    caller.requeue(caller.hold(*numbered(3), tenant="a"))
    for name in ("b", "c", "d"):
        caller.enqueue_for(name, *numbered(2))
    served: list[str] = []
    while len(served) < 6:
        served += turns([caller.claim(count)])
    assert sorted(served[:3]) == sorted(served[3:]) == ["b", "c", "d"]


@pytest.mark.promise("A claim never returns empty while a deliverable message of any tenant is pending.")
def test_thousands_of_dead_letters_in_many_lines_are_worked_off_in_several_calls(caller: Caller):
    """At most a thousand a call, and then the message behind them is delivered."""
    caller.settings.ttl_us = HOUR_US
    for name in ("a", "b"):
        caller.enqueue_for(name, *numbered(1_200))
        age(caller, KEYS.tenant_pending(name))
    caller.enqueue_for("c", b"young")
    answers = until_it_is_told(caller)
    assert answers[-1].payloads == [b"young"]
    assert max(len(claimed.dead) for claimed in answers) <= 1_000
    assert sum(len(claimed.dead) for claimed in answers) == 2_400
    assert faults(caller.client) == []


@pytest.mark.promise("A claim never returns empty while a deliverable message of any tenant is pending.")
def test_a_claim_is_not_told_empty_when_a_tenant_before_others_has_only_dead_letters(caller: Caller):
    """Messages without a tenant, whose turn was next, are delivered; so are those of the next tenant."""
    caller.settings.most = 1
    for behind in (NOBODY, "b"):
        caller.requeue(caller.hold(b"dead", tenant="a"))
        enter(caller, behind, b"good")
        answers = until_it_is_told(caller)
        assert answers[-1].payloads == [b"good"]


# What somebody has removed by hand


def test_a_tenant_whose_line_was_removed_leaves_the_ring(caller: Caller):
    """The next claim meets it, and goes on to the next tenant."""
    for name in ("a", "b"):
        caller.enqueue_for(name, b"x")
    caller.client.delete(KEYS.tenant_pending("a"))
    assert turns(until_it_is_told(caller)) == ["b"]
    assert not caller.client.exists(KEYS.tenant_ring)


@pytest.mark.parametrize("count", [1, 5])
def test_thousands_of_tenants_whose_lines_were_removed_are_worked_off_in_several_calls(caller: Caller, count: int):
    """No claim walks through all of them at once."""
    names = [f"tenant {place}" for place in range(2_500)]
    caller.enqueue_all(New(b"x", name.encode()) for name in names)
    caller.client.delete(*[KEYS.tenant_pending(name) for name in names[:-1]])
    answers = until_it_is_told(caller, count)
    assert len(answers) >= 3
    assert turns(answers) == [names[-1]]


@pytest.mark.parametrize("count", [1, 5])
def test_a_ring_that_was_removed_holds_up_nobody_else(caller: Caller, count: int):
    """New tenants are served; those of the old ring are served when they publish again."""
    caller.enqueue_for("a", b"old")
    caller.client.delete(KEYS.tenant_ring)
    assert caller.claim(count).taken == ()
    caller.publish(b"of nobody")
    assert caller.claim(count).payloads == [b"of nobody"]
    caller.enqueue_for("b", b"new")
    assert until_it_is_told(caller, count)[-1].payloads == [b"new"]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("left", [1, 3])
def test_a_size_that_was_removed_keeps_nobody_from_publishing(caller: Caller, count: int, left: int):
    """It never counts less than nothing."""
    caller.enqueue_for("a", *numbered(count + left))
    caller.client.delete(KEYS.tenant_backlog)
    assert len(caller.claim(count).taken) == count
    assert caller.enqueue(New(b"x", b"a")) == b"1"
    assert caller.enqueue(New(b"x", b"b")) == b"1"
    assert int(caller.client.get(KEYS.tenant_backlog)) >= 0


# What holders do


@pytest.mark.promise("A requeued batch returns to the front of each tenant queue.")
def test_what_is_given_back_goes_to_the_front_of_its_own_line(caller: Caller):
    """In its order, each to its tenant."""
    for name in ("a", "b"):
        caller.enqueue_for(name, *numbered(4, name))
    caller.publish_all(numbered(4, "nobody"))
    taken = caller.claim(9).taken
    assert caller.requeue(taken) == b"1" * 9
    for name, line in (("a", KEYS.tenant_pending("a")), ("b", KEYS.tenant_pending("b")), ("nobody", KEYS.pending)):
        payloads = [stored.split(name.encode())[-1] for stored in caller.client.lrange(line, 0, -1)]
        assert payloads == [b" 3", b" 2", b" 1", b" 0"], name
    assert faults(caller.client) == []


def test_a_tenant_that_had_left_joins_again_with_what_is_given_back(caller: Caller):
    """As a newcomer."""
    held = caller.hold(b"first", tenant="a")
    caller.enqueue_for("b", *numbered(3))
    caller.requeue(held)
    assert faults(caller.client) == []
    assert sorted(turns(caller.claim_one_by_one(2))) == ["a", "b"]


ENDINGS = {
    "settled": lambda caller, one: caller.settle([one]),
    "kept": lambda caller, one: caller.settle([one], kept=KEYS.failed),
    "put off": lambda caller, one: caller.retry_later([one]),
    "requeued": lambda caller, one: caller.requeue([one]),
    "settled in a batch with one that nobody holds": lambda caller, one: caller.settle([one, (b"x" * 16, 1)]),
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("tenant", ["a", None], ids=["a tenant", "no tenant"])
def test_a_late_holder_takes_its_message_from_those_that_came_back(caller: Caller, tenant: str | None, end):
    """With the last of them its tenant leaves the ring, and with the last tenant the ring is gone."""
    first, second = hold_and_let_come_back(caller, tenant=tenant)
    for one in (second, first):
        assert end(caller, one)[:1] == b"1"
        assert faults(caller.client) == []
    assert not caller.client.exists(KEYS.expired(tenant or ""))
    line = KEYS.tenant_pending(tenant) if tenant else KEYS.pending
    assert caller.client.exists(KEYS.tenant_ring) == caller.client.exists(line)


# What it costs


def calls_of_a_claim(caller: Caller, count: int = 1) -> int:
    """How many commands the server runs inside a claim."""
    caller.client.config_resetstat()
    caller.claim(count)
    stats = caller.client.info("commandstats")
    own = ("cmdstat_evalsha", "cmdstat_config")
    return sum(one["calls"] for name, one in stats.items() if not name.startswith(own))


@pytest.mark.promise(
    "A claim costs the same with 10,000 waiting tenants as with 10, and uses neither `KEYS` nor `SCAN`."
)
def test_ten_thousand_tenants_cost_a_claim_no_more_calls_than_ten(client: redis.Redis):
    """It looks at those whose turn it is, and at nobody else, for one message as for several."""
    costs = []
    for tenants in (10, 10_000):
        client.flushall()
        caller = Caller(client)
        caller.enqueue_all(New(b"x", b"tenant %d" % place) for _ in range(4) for place in range(tenants))
        caller.claim(10)
        costs.append((calls_of_a_claim(caller), calls_of_a_claim(caller, 10)))
    assert costs[0] == costs[1]


@pytest.mark.promise("A queue without tenants has no extra cost for them.")
def test_a_queue_without_tenants_and_delays_pays_nothing_for_them(caller: Caller):
    """A claim looks once whether there is anything unusual; when tenants and delays have come and gone, as before."""
    caller.publish_all(numbered(9))
    caller.claim()
    usual = calls_of_a_claim(caller)
    caller.enqueue_for("a", b"x")
    caller.enqueue(New(b"x", due="+1"))
    caller.pass_delays()
    while len(read(caller.client).lines[""]) > 5:
        caller.claim()
    caller.claim()
    assert read(caller.client).alarms == {}
    assert calls_of_a_claim(caller) == usual


def test_a_batch_of_many_tenants_reads_little_more_than_it_takes(caller: Caller):
    """A hundred tenants with long lines: a claim of a hundred does not read ten thousand messages."""
    for place in range(100):
        caller.enqueue_for(f"tenant {place}", *[b"x"] * 100)
    with caller.client.monitor() as overheard:
        assert len(caller.claim(100).taken) == 100
        caller.client.echo("that was it")
        commands = iter(lambda: overheard.next_command()["command"], "ECHO that was it")
        ranges = [command.split()[-2:] for command in commands if command.lower().startswith("lrange")]
    assert sum(int(last) - int(first) + 1 for first, last in ranges) <= 300


# The bound holds for whatever waits, however long the queue has run


def claims_until(caller: Caller, tenant: str, most: int) -> int:
    """How many claims are made until this tenant has one of its messages."""
    for number in range(1, most + 1):
        if caller.claim_at_last().only.tenant == tenant:
            return number
    raise AssertionError(f"{tenant} was not served within {most} claims")


def test_thousands_of_expired_leases_of_one_tenant_do_not_delay_another(caller: Caller):
    """Its message came back last of all, and is still served within a round, before its own younger ones."""
    for _ in range(3):
        caller.enqueue_for("large", *[b"x"] * 1_000)
        assert len(caller.claim(1_000).taken) == 1_000
    caller.enqueue_for("small", b"old")
    assert caller.claim().payloads == [b"old"]
    caller.enqueue_for("small", b"young")
    caller.expire()
    served = [caller.claim_at_last().only for _ in range(4)]
    assert [one.tenant for one in served].index("small") < 2
    assert [one.payload for one in served if one.tenant == "small"] == [b"old", b"young"]


@pytest.mark.parametrize("other", ["large", NOBODY], ids=["a tenant", "no tenant"])
def test_thousands_of_delays_of_one_tenant_that_end_do_not_delay_another(caller: Caller, other: str):
    caller.enqueue_all([New(b"x", other.encode(), due="+1000") for _ in range(3_000)])
    caller.enqueue(New(b"y", b"small", due="+2000"))
    caller.pass_delays()
    assert claims_until(caller, "small", 2) <= 2


@pytest.mark.parametrize("time", [2.0**33 - 27_720, 2.0**34, 2.0**52])
def test_turns_are_fair_however_long_the_queue_has_run(caller: Caller, time: float):
    """Where a score could not tell the order of tenants any more, the time starts from nothing."""
    names = [f"tenant {number}" for number in range(20)]
    for name in names:
        caller.enqueue_for(name, *[b"x"] * 4)
    ring = dict(caller.client.zrange(KEYS.tenant_ring, 0, -1, withscores=True))
    caller.client.zadd(KEYS.tenant_ring, {name: score + time for name, score in ring.items()})
    for _ in range(3):
        assert sorted(turns(caller.claim_one_by_one(20))) == sorted(names)
    assert faults(caller.client) == []


@pytest.mark.parametrize("lost", ["the place in the ring", "the ring", "the alarm", "everything"])
def test_what_an_operator_removed_of_the_ring_heals_with_the_next_message(caller: Caller, lost: str):
    caller.enqueue_for("a", b"first", b"second")
    if lost == "the place in the ring":
        caller.client.zrem(KEYS.tenant_ring, "a")
    if lost in ("the ring", "everything"):
        caller.client.delete(KEYS.tenant_ring)
    if lost in ("the alarm", "everything"):
        caller.client.delete(KEYS.leases)
    caller.enqueue_for("a", b"third")
    assert [caller.claim().payloads for _ in range(3)] == [[b"first"], [b"second"], [b"third"]]


@pytest.mark.promise("Messages that come back after a crash take turns too, if nothing else of a tenant waits.")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("other", ["b", NOBODY], ids=["a tenant", "no tenant"])
def test_expired_messages_take_turns_among_themselves(caller: Caller, other: str, count: int):
    """Those of one tenant expired first, and nothing fresh waits: the other one is served in turn all the same."""
    caller.hold(*numbered(6), tenant="a")
    caller.hold(*numbered(6), tenant=other or None)
    caller.expire()
    taken = [one for _ in range(12 // count) for one in caller.claim_at_last(count).taken]
    served = [one.tenant or NOBODY for one in taken]
    for start in range(0, 12, 2):
        assert sorted(served[start : start + 2]) == sorted(["a", other]), served
    for name in ("a", other):
        assert [one.payload for one in taken if (one.tenant or NOBODY) == name] == numbered(6)
    assert faults(caller.client) == []


def test_expired_messages_without_a_tenant_do_not_delay_one_of_a_tenant(caller: Caller):
    """However many of them expired before it."""
    for _ in range(3):
        caller.hold(*[b"x"] * 1_000)
    caller.hold(b"y", tenant="small")
    caller.expire()
    assert claims_until(caller, "small", 2) <= 2


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after the other"])
def test_expired_messages_of_a_tenant_do_not_delay_a_fresh_one_without(caller: Caller, at_once: bool):
    """Also if each of them expires only when the one before has been served."""
    caller.hold(*numbered(4), tenant="a")
    deadlines = sorted(caller.deadlines().items(), key=lambda one: one[1])
    caller.publish_all(numbered(4))
    served = []
    for place in range(8):
        if at_once and place == 0:
            caller.expire()
        elif not at_once and place < 4:
            token, deadline = deadlines[place]
            caller.client.zadd(KEYS.leases, {token: deadline - 2 * HOUR_US})
        served += turns([caller.claim_at_last()])
    assert Counter(served) == {"a": 4, NOBODY: 4}
    assert all(NOBODY in served[start : start + 2] for start in range(7)), served
    assert not caller.client.exists(KEYS.tenant_ring, KEYS.expired("a"), KEYS.expired(""))


@pytest.mark.parametrize("seed", range(often(2, 4)))
def test_messages_without_a_tenant_wait_for_a_round_at_most_whoever_comes_and_goes(seed: int, caller: Caller):
    """Also where they are alone at times: then they need no turns, and get theirs when a tenant comes."""
    chance = random.Random(seed)
    caller.publish_all(numbered(200))
    waiting: Counter[str] = Counter()
    since: dict[str, Counter[str]] = {NOBODY: Counter()}  # who was served since this one was
    for _ in range(200):
        for name in chance.sample(["a", "b", "c"], chance.choice([0, 0, 1, 2])):
            messages = chance.randint(1, 3)
            caller.enqueue_for(name, *numbered(messages))
            waiting[name] += messages
            since.setdefault(name, Counter())
        for served in turns([caller.claim(chance.choice([1, 1, 2]))]):
            waiting[served] -= 1
            del since[served]
            for name, others in since.items():
                others[served] += 1
                assert others[served] <= 1, (name, others)
            if served == NOBODY or waiting[served]:
                since[served] = Counter()
        assert faults(caller.client) == []
