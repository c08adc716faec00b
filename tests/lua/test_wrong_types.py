"""A key that holds something else fails a script before it has changed anything.

`watch` is the exception: whatever lies there may be overwritten or removed, for it only says that somebody is awake.
"""

import pytest
import redis

from redis_message_queue.scripts import all_names, script
from tests.lua import situations
from tests.lua.scripts_runner import KEYS, ON_WATCH, Caller, Taken, dump
from tests.lua.situations import EVERY, NUMBERED, Situation, script_of, title

# For each script a call that needs all of its keys; and the keys that it does without.
FULLEST = [
    (situations.publish_with_a_key_where_the_oldest_may_be_dropped, set()),
    (situations.claim_everything_at_once, {"watch"}),
    (situations.settle_what_was_delivered_twice, set()),
    (situations.give_back, set()),
    (situations.renew, set()),
    (situations.ring, set()),
]
WRONG = {
    "string": lambda client, key: client.set(key, "something else"),
    "list": lambda client, key: client.rpush(key, "something", "else"),
    "hash": lambda client, key: client.hset(key, "something", "else"),
    "zset": lambda client, key: client.zadd(key, {"something": 1}),
}
RIGHT = {
    **dict.fromkeys(("pending", "bell", "dlq", "kept"), "list"),
    **dict.fromkeys(("processing", "deliveries"), "hash"),
    **dict.fromkeys(("reply", "marker"), "string"),
    "leases": "zset",
}


def needed_keys(situation: Situation, spared: set[str]) -> list[str]:
    return [key for key in script(script_of(situation)).keys if key not in spared]


def spoil(caller: Caller, key: str, kind: str) -> None:
    """Put a value of this type where the key is."""
    caller.client.delete(caller.key(key))
    WRONG[kind](caller.client, caller.key(key))


def test_every_key_of_every_script_is_tried():
    """A new script, or a new key, needs its row in the table."""
    tried = {(script_of(one), key) for one, spared in FULLEST for key in needed_keys(one, spared)}
    assert tried == {(name, key) for name in all_names() for key in script(name).keys if key != "watch"}


@pytest.mark.parametrize(
    "situation, key, kind",
    [
        (situation, key, kind)
        for situation, spared in FULLEST
        for key in needed_keys(situation, spared)
        for kind in WRONG
        if kind != RIGHT[key]
    ],
    ids=title,
)
def test_a_key_of_a_wrong_type_fails_the_script_and_nothing_has_changed(
    situation: Situation, key: str, kind: str, caller: Caller
):
    """Each key of each script, where the script has a use for it."""
    call = situation(caller)
    spoil(caller, key, kind)
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        call()
    assert dump(caller.client) == before


@pytest.mark.parametrize(
    "situation, key", [(one, key) for one in EVERY for key in needed_keys(one, {"watch"})], ids=title
)
def test_a_script_fails_whole_or_does_without_the_key(situation: Situation, key: str, caller: Caller):
    """In no situation is half of the work done before a key of a wrong type is found."""
    call = situation(caller)
    spoil(caller, key, "list" if RIGHT[key] == "string" else "string")
    before = dump(caller.client)
    try:
        call()
    except redis.ResponseError:
        assert dump(caller.client) == before
    else:
        name = caller.key(key).encode()
        assert dump(caller.client)[name] == before[name]


@pytest.mark.parametrize("kind", WRONG)
def test_a_watch_of_any_type_does_not_keep_a_claim_from_its_work(kind: str, caller: Caller):
    """The watch may hold anything: a claim works, and a watcher that leaves removes it."""
    caller.publish(b"first")
    WRONG[kind](caller.client, KEYS.watch)
    assert caller.claim(woken=ON_WATCH).payloads == [b"first"]
    assert not caller.client.exists(KEYS.watch)


# What is shorter or longer than a number, and sorts before or behind it.
VALUES = [b"", b"hello", b"5", b"12:1", b"plain text, longer than a number", b'"a quoted text"', b" " * 20, b"{}" * 20]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("situation", [one for one, _ in FULLEST if one in NUMBERED], ids=title)
def test_a_foreign_value_in_the_reply_key_fails_the_script(situation: Situation, value: bytes, caller: Caller):
    """Whether the call was made before cannot be told, so it is not made."""
    call = situation(caller)
    caller.client.set(caller.reply, value)
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError):
        call()
    assert dump(caller.client) == before


@pytest.mark.parametrize("answer", [b"", b"garbage", b"1", b"\x81", b"\xc0"])
def test_an_answer_of_another_kind_under_the_number_of_a_claim_fails_it(answer: bytes, caller: Caller):
    """A claim that cannot read what it took before takes nothing."""
    caller.publish(b"first", call=5)
    caller.client.set(caller.reply, caller.client.get(caller.reply)[:-1] + answer)
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError):
        caller.claim(call=5)
    assert dump(caller.client) == before


ENTRIES = [b"", b"nonsense", b"2", b":2", b"2:2:2", b"2:2\n"]


def held_with_entries(caller: Caller) -> tuple[Taken, ...]:
    """Two messages that were delivered twice."""
    caller.hold(b"first", b"second")
    caller.expire()
    return caller.claim(2).taken


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "act",
    [
        lambda caller, held: caller.settle(held),
        lambda caller, held: caller.settle(held, kept=KEYS.completed),
        lambda caller, held: caller.give_back(held),
        lambda caller, held: caller.claim(0, call=caller.number),
    ],
    ids=["settle", "settle into a list", "give back", "claim sent again"],
)
def test_a_foreign_entry_in_the_deliveries_fails_the_holder_of_the_message(act, entry: bytes, caller: Caller):
    """Who holds it cannot be told; the message before it in the batch stays untouched too."""
    held = held_with_entries(caller)
    caller.client.hset(KEYS.deliveries, held[1].id, entry)
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError, match="foreign value"):
        act(caller, held)
    assert dump(caller.client) == before


@pytest.mark.parametrize("lease", [1, 2])
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_foreign_entry_in_the_deliveries_renews_nobody(entry: bytes, lease: int, caller: Caller):
    """Whatever number a holder brings, the entry does not confirm it."""
    id = held_with_entries(caller)[1].id
    caller.client.hset(KEYS.deliveries, id, entry)
    before = dump(caller.client)
    try:
        assert caller.renew([(id, lease)]) == b"0"
    except redis.ResponseError as error:
        assert "foreign value" in str(error)
    assert dump(caller.client) == before


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("place", ["in the line", "with an expired lease"])
def test_a_foreign_entry_in_the_deliveries_fails_a_claim(place: str, entry: bytes, caller: Caller):
    """Neither its lease number nor its count is known, so it is not delivered."""
    held = held_with_entries(caller)
    caller.give_back(held) if place == "in the line" else caller.expire()
    caller.client.hset(KEYS.deliveries, held[1].id, entry)
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError, match="foreign value"):
        caller.claim(2)
    assert dump(caller.client) == before
