"""A group of messages leads to the same as its messages in calls of their own, one after the other."""

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redis_message_queue.stored import envelope
from tests.depth import often
from tests.lua.scripts_runner import KEYS, Caller, New, chunk_ids, fresh_base
from tests.lua.state import faults, read

pytestmark = pytest.mark.topic("Group commit")

TENANTS = (b"", b"acme", b"zeta")
HOUR = "+3600000000"

messages = st.lists(
    st.builds(
        New,
        payload=st.just(b""),
        tenant=st.sampled_from(TENANTS),
        due=st.sampled_from(("", "", "", HOUR)),
        marker=st.sampled_from((None, None, "one", "two")),
    ),
    min_size=1,
    max_size=12,
)
limits = st.sampled_from((0, 1, 2, 3, 5, 8))


def named(news: list[New]) -> list[New]:
    return [New(b"%d" % nth, one.tenant, one.due, one.marker, one.extras) for nth, one in enumerate(news)]


def grouped(caller: Caller, news: list[New]) -> tuple[list[tuple[bytes, list[bytes]]], dict[bytes, bytes]]:
    """What each message was answered, with the ids that it dropped; and the payloads of all ids."""
    base, answers, start = fresh_base(), [], 0
    names: dict[bytes, bytes] = {}
    while start < len(news):
        some = news[start:]
        reply = caller.enqueue(*some, base=base, form="each")
        marks, rest = reply[: len(some)], reply[len(some) :]
        dropped = [(int.from_bytes(rest[at : at + 2], "big"), rest[at + 2 : at + 18]) for at in range(0, len(rest), 18)]
        names |= dict(zip(chunk_ids(base, len(some)), (one.payload for one in some), strict=True))
        done = len(marks.rstrip(b"?"))
        answers += [(marks[nth : nth + 1], [id for place, id in dropped if place == nth + 1]) for nth in range(done)]
        assert done > 0
        start, base = start + done, fresh_base()
    return answers, names


def one_by_one(caller: Caller, news: list[New]) -> tuple[list[tuple[bytes, list[bytes]]], dict[bytes, bytes]]:
    answers, names = [], {}
    for one in news:
        base = fresh_base()
        reply = caller.enqueue(one, base=base, form="full")
        names[chunk_ids(base, 1)[0]] = one.payload
        answers.append((reply[:1], [reply[at : at + 16] for at in range(1, len(reply), 16)]))
    return answers, names


def look(caller: Caller, answers: Any, names: dict[bytes, bytes]) -> dict[str, Any]:
    """Everything that both ways must agree about: without times, and with payloads instead of ids."""
    client = caller.client
    state = read(client)
    assert faults(client) == []
    name = {**names, **{one.hex().encode(): payload for one, payload in names.items()}}
    by_name = lambda text: name.get(text, text)  # noqa: E731
    return {
        "answers": [(mark, [by_name(id) for id in dropped]) for mark, dropped in answers],
        "lines": {tenant: [envelope.Envelope(one).payload for one in line] for tenant, line in state.lines.items()},
        "later": {envelope.Envelope(one).payload for one in state.later.values()},
        "markers": {key: by_name(client.get(key)) for key in client.keys(KEYS.deduplication("*"))},
        "ring": state.ring,
        "size": state.size,
        "tokens": state.tokens,
        "journal": [
            {field: by_name(value) for field, value in entry.items() if field not in (b"at", b"due")}
            for entry in state.journal
        ],
    }


@settings(max_examples=often(30, 2_000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages, messages, limits, limits, st.sampled_from(("refuse", "drop")), st.booleans())
@example([], [New(b""), New(b"")], 1, 0, "refuse", True)
@example([New(b"")], [New(b"", b"acme"), New(b"", b"acme", HOUR)], 3, 1, "refuse", True)
@example([New(b"", b"zeta")] * 5, [New(b"", b"acme")] * 8, 5, 2, "drop", True)
def test_a_group_and_calls_one_after_another_lead_to_the_same(
    client: redis.Redis, before: list[New], news: list[New], limit: int, tenant_limit: int, overload: str, told: bool
):
    """Answers, lists, delays, markers, tenants, wake-ups and the journal."""
    if overload == "drop":  # a queue that drops messages has no deduplication keys
        before, news = ([New(b"", one.tenant, one.due) for one in some] for some in (before, news))
    looks = []
    for way in (grouped, one_by_one):
        client.flushall()
        caller = Caller(client, limit=limit, tenant_limit=tenant_limit, overload=overload)
        if told:
            caller.open_journal()
        everything = named([*before, *news])
        before_answers, names = one_by_one(caller, everything[: len(before)])
        answers, more = way(caller, everything[len(before) :])
        looks.append(look(caller, [*before_answers, *answers], names | more))
    assert looks[0] == looks[1]


def test_a_group_that_is_sent_again_counts_once(caller: Caller):
    """The reply says the same, dropped messages included."""
    caller.settings.limit, caller.settings.overload = 2, "drop"
    reply = caller.enqueue(*[b"%d" % nth for nth in range(5)], form="each")
    assert reply[:5] == b"11111"
    assert len(reply) == 5 + 3 * 18
    before = read(caller.client).stored
    assert caller.last() == reply
    assert read(caller.client).stored == before


def test_a_wrong_type_at_the_first_message_fails_the_group_and_nothing_has_changed(caller: Caller):
    caller.settings.limit = 10
    caller.client.hset(KEYS.deduplication("bad"), "not", "ours")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        caller.enqueue(New(b"0", marker="bad"), New(b"1"), form="each")
    assert read(caller.client).stored == []


@pytest.mark.parametrize("told", [False, True])
def test_a_wrong_type_at_a_later_message_ends_the_group_before_it(caller: Caller, told: bool):
    """What was stored before has its answer, and a journal that knows nothing of what comes behind."""
    if told:
        caller.open_journal()
    caller.settings.limit = 10
    caller.client.hset(KEYS.tenant_pending("bad"), "not", "ours")
    reply = caller.enqueue(New(b"0"), New(b"1"), New(b"2", b"bad"), New(b"3"), form="each")
    assert reply == b"11??"
    assert caller.client.llen(KEYS.pending) == 2
    assert len(caller.journal()) == (2 if told else 0)


def test_a_group_drops_no_more_than_a_thousand_messages(caller: Caller):
    """A lowered limit is reached by later calls, as it is by single publishes."""
    caller.enqueue_all([New(b"x")] * 2_500)
    caller.settings.limit, caller.settings.overload = 10, "drop"
    reply = caller.enqueue(*[b"%d" % nth for nth in range(5)], form="each")
    assert reply[:5] == b"1????"
    assert len(reply) == 5 + 1_000 * 18


def test_a_group_drops_no_more_bytes_than_a_script_may_read(caller: Caller):
    for _ in range(8):
        caller.enqueue(b"x" * 2_000_000)
    caller.settings.limit, caller.settings.overload = 8, "drop"
    reply = caller.enqueue(*[b"%d" % nth for nth in range(6)], form="each")
    assert reply[:6] == b"11????"


def test_the_largest_message_of_a_group_is_remembered(caller: Caller):
    """Whatever comes behind it."""
    caller.settings.limit = 10
    caller.enqueue(b"x" * 900_000, b"x" * 100_000, form="each")
    assert int(caller.client.hget(KEYS.meta, "largest")) >= 900_000


def test_a_chunk_without_limits_is_what_its_messages_are_one_after_another(caller: Caller, other: Caller):
    """So a group needs no form of its own there; one key that comes twice stores the first message."""
    news = named([New(b"", marker="one"), New(b"", marker="one"), New(b"", b"acme"), New(b"", b"acme", HOUR)])
    looks = []
    for way in ("full", "single"):
        caller.client.flushall()
        caller.write_state()
        caller.open_journal()
        if way == "single":
            answers, names = one_by_one(caller, news)
        else:
            base = fresh_base()
            reply = caller.enqueue(*news, base=base, form="full")
            answers = [(reply[nth : nth + 1], []) for nth in range(len(news))]
            names = dict(zip(chunk_ids(base, len(news)), (one.payload for one in news), strict=True))
        looks.append(look(caller, answers, names))
    assert looks[0] == looks[1]
