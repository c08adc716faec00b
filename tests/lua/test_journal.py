"""What the journal contains, entry by entry, and what happens if nobody reads it."""

import json

import pytest
import redis

from tests.lua import situations
from tests.lua.scripts_runner import KEYS, TARGET, Caller, New, dump, numbered
from tests.lua.situations import EVERY, Situation, title
from tests.lua.stage import Stage
from tests.tables import row

pytestmark = pytest.mark.topic("Journal")

OURS = ("n", "at", "event", "id", "tenant")  # what every entry has, and in this order


def events(caller: Caller) -> list[str]:
    return [entry["event"] for entry in caller.journal()]


@pytest.fixture
def journaled(caller: Caller) -> Caller:
    """A caller of a queue with a journal."""
    caller.open_journal()
    return caller


def test_a_message_is_recorded_from_its_publish_to_its_ack(journaled: Caller):
    """Serial numbers without a gap, the server's clock, the message's id."""
    (id,) = journaled.publish_all([b"first"])
    journaled.settle(journaled.claim().taken)
    told = journaled.journal()
    assert [entry["event"] for entry in told] == ["published", "claimed", "acked"]
    assert [entry["n"] for entry in told] == ["1", "2", "3"]
    assert {entry["id"] for entry in told} == {id.hex()}
    assert all(tuple(entry)[:5] == OURS for entry in told)
    assert sorted(int(entry["at"]) for entry in told) == [int(entry["at"]) for entry in told]
    assert abs(int(told[0]["at"]) - journaled.now_us()) < 60_000_000
    assert told[1]["count"] == "1"


@pytest.mark.parametrize("base", [bytes(14), bytes(range(14)), b"\xff" * 14])
def test_an_id_is_recorded_with_all_its_digits(journaled: Caller, base: bytes):
    journaled.enqueue(b"first", base=base)
    assert [entry["id"] for entry in journaled.journal()] == [base.hex() + "0001"]


def test_an_entry_has_the_time_of_its_stream_id(journaled: Caller):
    """In microseconds, where the id has milliseconds."""
    journaled.publish(b"first")
    ((id, entry),) = journaled.client.xrange(KEYS.journal)
    # Redis 6.2 takes the time of the id a moment later, which may be another millisecond.
    assert 0 <= int(id.split(b"-")[0]) - int(entry[b"at"]) // 1000 < 60_000


def test_a_chunk_is_recorded_message_by_message(journaled: Caller):
    """With tenants, duplicates, delays, and what had to make room."""
    journaled.settings.limit, journaled.settings.overload = 3, "drop"
    journaled.enqueue_for("acme", b"old")
    journaled.enqueue(
        New(b"a", marker="key"), New(b"b", marker="key"), New(b"c", b"acme"), New(b"d", due="+1000000000")
    )
    told = journaled.journal()[1:]
    events = ["published", "duplicate", "published", "published", "delayed", "dropped"]
    assert [entry["event"] for entry in told] == events
    assert [entry["tenant"] for entry in told] == ["", "", "acme", "", "", "acme"]
    assert told[1]["of"] == told[0]["id"]
    assert told[3]["id"] == told[4]["id"]
    assert int(told[4]["due"]) == int(told[4]["at"]) + 1_000_000_000


def test_a_repeated_import_leaves_no_entries(journaled: Caller):
    """The message that it finds is its own: its history goes on as it was."""
    message = ("", b"", "", situations.exported(b"first"))
    journaled.restore(message)
    journaled.settle(journaled.claim().taken)
    assert journaled.restore(message, message) == b"00"
    assert events(journaled) == ["published", "claimed", "acked"]


def test_payloads_are_recorded_where_they_are_wanted(caller: Caller):
    """By publish, by enqueue and by redrive; with 0 they stay private."""
    for payload in (0, 1):
        caller.client.flushall()
        caller.open_journal(payload=payload)
        caller.publish(b"one")
        caller.enqueue(New(b"two", b"acme"), b"three")
        told = [entry.get("payload") for entry in caller.journal()]
        assert sorted(map(str, told)) == (["one", "three", "two"] if payload else ["None"] * 3)


@pytest.mark.parametrize("payload", [0, 1])
def test_headers_are_told_with_the_payload(caller: Caller, payload: int):
    """They are as private as the payload. What is no set of headers is left out."""
    caller.open_journal(payload=payload)
    caller.enqueue(New(b"one", extras=b'{"headers": {"trace": "7"}}'), New(b"two", extras=b'{"headers": 5}'), b"three")
    told = {entry.get("payload"): entry.get("headers") for entry in caller.journal()}
    assert told == ({"one": '{"trace":"7"}', "two": None, "three": None} if payload else {None: None})


def test_a_claim_records_reclaimed_messages_and_dead_letters(journaled: Caller):
    """Claimed anew, delivered too often, too old."""
    journaled.hold(b"first", b"second")
    journaled.settings.most = 2
    journaled.expire()
    journaled.claim(2)
    journaled.expire()
    journaled.settings.ttl_us = 0
    assert len(journaled.claim(2).dead) == 2
    assert events(journaled) == ["published"] * 2 + ["claimed"] * 2 + ["reclaimed"] * 2 + ["dead"] * 2
    last = journaled.journal()[-1]
    assert (last["reason"], last["count"]) == ("deliveries", "2")


def test_what_is_too_old_has_an_event_of_its_own(journaled: Caller):
    journaled.publish(b"first")
    journaled.settings.ttl_us = 1
    journaled.claim()
    assert events(journaled) == ["published", "expired"]


@pytest.mark.parametrize(
    "note, event",
    [("", "acked"), ({"reason": "completed"}, "acked"), ({"reason": "failed", "event": "failed"}, "failed")],
)
def test_a_settlement_records_its_reason(journaled: Caller, note: dict[str, str] | str, event: str):
    """Also where nothing is kept, and its record does not repeat it."""
    for kept in (None, KEYS.failed):
        told = note if isinstance(note, str) else json.dumps({**note, "error_type": "ValueError"})
        journaled.settle(journaled.hold(b"first"), kept=kept, note=told)
        entry = journaled.journal()[-1]
        assert entry["event"] == event
        assert entry.get("error_type") == (None if event == "acked" else "ValueError")
    assert "event" not in journaled.records(KEYS.failed)[0]


def test_a_retry_records_when_and_why(journaled: Caller):
    journaled.retry_later(journaled.hold(b"first"), 5_000_000)
    entry = journaled.journal()[-1]
    assert (entry["event"], entry["failures"], entry["error_type"]) == ("retried", "1", "ValueError")
    assert int(entry["due"]) == int(entry["at"]) + 5_000_000


@pytest.mark.parametrize("kept", [None, KEYS.completed])
def test_a_settlement_tells_when_each_handler_started_and_how_long_it_ran(journaled: Caller, kept: str | None):
    """Of several messages, each has its own; their records do not repeat it."""
    note = json.dumps({"reason": "completed", "handled": [3_000_000, 1_000_000, 2_000_000, 500_000]})
    journaled.settle([*journaled.hold(b"first"), *journaled.hold(b"second")], kept=kept, note=note)
    entries = journaled.journal()[-2:]
    assert [int(entry["at"]) - int(entry["started"]) for entry in entries] == [3_000_000, 2_000_000]
    assert [entry["handled"] for entry in entries] == ["1000000", "500000"]
    assert kept is None or "handled" not in journaled.records(kept)[0]


def test_a_retry_tells_how_long_its_handler_ran(journaled: Caller):
    journaled.retry_later(journaled.hold(b"first"), handled="3000 2000")
    entry = journaled.journal()[-1]
    assert (int(entry["at"]) - int(entry["started"]), entry["handled"]) == (3_000, "2000")


def test_a_redriven_message_names_the_one_that_it_repeats(journaled: Caller):
    """It enters under a new id, and is not told as published."""
    journaled.settle(journaled.hold(b"first"), kept=KEYS.dead_letter)
    journaled.redrive(1)
    entry = journaled.journal()[-1]
    assert (entry["event"], entry["replay_of"]) == ("redriven", "before")


def test_a_sweep_records_how_many(journaled: Caller):
    """And of what; one that found nothing tells nothing."""
    journaled.enqueue_for("acme", b"first", b"second")
    journaled.sweep("pending", "acme")
    journaled.sweep("pending", "acme")
    entry = journaled.journal()[-1]
    assert (entry["event"], entry["count"], entry["target"], entry["tenant"]) == ("purged", "2", "pending", "acme")
    assert len(journaled.journal()) == 3


@pytest.mark.promise("A hand-off is in the journals of both queues.")
@pytest.mark.parametrize("there", [True, False], ids=["both", "source alone"])
def test_a_hand_off_is_recorded_in_the_journal_of_each_queue(journaled: Caller, there: bool):
    """In one as leaving, in the other as entering; a queue without a journal gets none."""
    if there:
        journaled.client.hset(TARGET.meta, mapping={"journal": 0, "journal_soft": 100, "journal_hard": 100})
    journaled.hand_off(journaled.hold(b"first"), b"second", New(b"third", b"acme"))
    entry = journaled.journal()[-1]
    assert (entry["event"], entry["results"]) == ("handed_off", "2")
    away = [entry[b"event"] for _, entry in journaled.client.xrange(TARGET.journal)]
    assert away == ([b"published"] * 2 if there else [])


def test_a_queue_without_a_journal_gets_none(stage: Stage, subtests: pytest.Subtests):
    for situation in EVERY:
        with row(subtests, situation=title(situation)):
            caller, call = stage.prepare(situation)
            call()
            assert not caller.client.exists(KEYS.journal, TARGET.journal)


def test_a_call_answers_the_same_with_a_journal(stage: Stage, subtests: pytest.Subtests):
    """The quick ways are left for the thorough ones, and nobody notices."""
    for situation in EVERY:
        with row(subtests, situation=title(situation)):
            _, call = stage.prepare(situation)
            expected = call()
            _, call = stage.prepare(situation, journaled=True)
            answer = call()
            if isinstance(expected, bytes):
                # ids of what was dropped may follow
                assert (len(answer), answer[:2]) == (len(expected), expected[:2])
            elif isinstance(expected, int):
                assert answer == expected
            elif not isinstance(expected, list):
                assert answer.payloads == expected.payloads
                assert (answer.tenants, answer.again) == (expected.tenants, expected.again)


@pytest.mark.promise(
    "The journal is bounded; entries that an archive has not read are kept ten times as long, and a gap is an entry."
)
def test_without_an_archive_a_journal_keeps_about_its_length(caller: Caller):
    """Redis cuts whole nodes of its stream; a journal is never shorter than it should be."""
    caller.open_journal(soft=200, hard=2_000)
    caller.publish_all(numbered(1_000))
    assert 200 <= caller.client.xlen(KEYS.journal) < 500
    assert caller.journal()[-1]["n"] == "1000"


@pytest.mark.promise(
    "The journal is bounded; entries that an archive has not read are kept ten times as long, and a gap is an entry."
)
def test_what_the_archive_has_not_read_is_kept_up_to_the_hard_limit(caller: Caller):
    """What it has read goes."""
    caller.open_journal(soft=200, hard=100_000)
    caller.publish_all(numbered(300))
    caller.client.hset(KEYS.meta, "journal_mark", caller.client.xrevrange(KEYS.journal, count=1)[0][0])
    caller.publish_all(numbered(1_000))
    kept = [int(entry["n"]) for entry in caller.journal()]
    assert kept == list(range(kept[0], 1_301))
    assert 200 < kept[0] <= 301


@pytest.mark.promise(
    "The journal is bounded; entries that an archive has not read are kept ten times as long, and a gap is an entry."
)
def test_beyond_the_hard_limit_the_gap_is_an_entry(caller: Caller):
    """All of it together is every serial number that was ever given."""
    caller.open_journal(soft=100, hard=250)
    caller.client.hset(KEYS.meta, "journal_mark", "0-1")
    caller.publish_all(numbered(1_000))
    told = caller.journal()
    assert caller.client.xlen(KEYS.journal) <= 400
    gaps = [entry for entry in told if entry["event"] == "gap"]
    lost = sum(int(entry["count"]) for entry in gaps)
    known = {int(entry["n"]) for entry in told}
    last = int(caller.client.hget(KEYS.meta, "journal_serial"))
    missing = set(range(1, last + 1)) - known
    assert gaps and max(known) == last
    first_kept = min(known)
    assert missing == set(range(1, first_kept))
    assert gaps[-1]["first"] == str(first_kept - int(gaps[-1]["count"]))
    assert lost >= int(gaps[-1]["count"]) > 0


@pytest.mark.parametrize("situation", [situations.publish, situations.claim_from_the_line, situations.settle])
def test_a_journal_of_a_wrong_type_fails_the_script_and_nothing_has_changed(situation: Situation, journaled: Caller):
    call = situation(journaled)
    journaled.client.delete(KEYS.journal)
    journaled.client.set(KEYS.journal, "something else")
    before = dump(journaled.client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        call()
    assert dump(journaled.client) == before
