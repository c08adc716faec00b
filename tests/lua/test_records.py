"""Records of messages, and how they stay in step with their list."""

import hashlib
from itertools import product

import pytest
import redis

from tests.lua.scripts_runner import HOUR_US, KEYS, Caller, New, dump, numbered, records_beside
from tests.lua.situations import age
from tests.lua.stage import Stage
from tests.lua.state import LISTS, faults
from tests.tables import row

pytestmark = pytest.mark.topic("Tracking lists")

every_list = pytest.mark.parametrize("kept", LISTS)
with_and_without_leases = pytest.mark.parametrize("leased", [True, False], ids=["with leases", "without leases"])

PAYLOADS = [b"", b"x", b"\x00", b"\xff\xfe\x00\x80", "Grüße".encode(), b"y" * 100_000, bytes(range(256))]


def microseconds(record: dict[str, str], name: str) -> int:
    """Times are text, because JSON's numbers would round them."""
    assert isinstance(record[name], str)
    return int(record[name])


# Shape


@pytest.mark.promise(
    "`records()` returns id, tenant, delivery count, error, and the times of publishing, claiming and settling, "
    "newest first."
)
@every_list
@with_and_without_leases
def test_a_record_has_all_that_is_known(caller: Caller, kept: str, leased: bool):
    """Whose message it was, which payload is meant, how often it was delivered, and when all that was."""
    caller.settings.lease_us *= leased
    before = caller.now_us()
    caller.enqueue(New(b"first", "Ümläut".encode()))
    caller.requeue(caller.claim().taken)
    held = caller.claim().only
    note = {"reason": "failed", "error_type": "ValueError", "error": 'no "such" thing: é\n\x00', "held_us": 5_000}
    caller.settle([held], kept=kept, note=note)
    (record,) = caller.records(kept)
    published, claimed, finished = (microseconds(record, name) for name in ("published", "claimed", "finished"))
    assert before <= published <= finished <= caller.now_us()
    assert claimed == finished - 5_000
    assert {name: record[name] for name in record if name not in ("published", "claimed", "finished")} == {
        "id": held.id.hex(),
        "tenant": "Ümläut",
        "deliveries": 2,
        "bytes": 5,
        "sha1": hashlib.sha1(b"first").hexdigest(),
        "reason": "failed",
        "error_type": "ValueError",
        "error": 'no "such" thing: é\n\x00',
    }


def test_a_record_without_details_is_short(caller: Caller):
    """No tenant, no error, no time of claiming."""
    caller.settle(caller.hold(b"first"), kept=KEYS.completed)
    (record,) = caller.records(KEYS.completed)
    assert record.keys() == {"id", "deliveries", "bytes", "sha1", "published", "finished"}
    assert record["deliveries"] == 1


@pytest.mark.parametrize("held_us", [0, 1, 10**12])
def test_the_time_of_claiming_is_counted_back_from_the_end(caller: Caller, held_us: int):
    """To the microsecond, by the server's clock, also over eleven days."""
    caller.settle(caller.hold(b"first"), kept=KEYS.failed, note={"held_us": held_us})
    (record,) = caller.records(KEYS.failed)
    assert microseconds(record, "finished") - microseconds(record, "claimed") == held_us
    assert "held_us" not in record


def test_a_record_names_its_payload_by_length_and_digest(stage: Stage, subtests: pytest.Subtests):
    """Whatever bytes it has."""
    for kept, payload in product(LISTS, PAYLOADS):
        with row(subtests, kept=kept, payload=payload):
            caller = stage.clear()
            caller.settle(caller.hold(payload), kept=kept)
            (record,) = caller.records(kept)
            assert (record["bytes"], record["sha1"]) == (len(payload), hashlib.sha1(payload).hexdigest())
            assert caller.client.lrange(kept, 0, -1) == [payload]


def test_a_record_of_a_large_error_is_kept_whole(caller: Caller):
    """Nothing is cut off on the way through the script."""
    error = "x" * 2_000 + "é" * 2_000
    caller.settle(caller.hold(b"first"), kept=KEYS.failed, note={"error": error})
    assert caller.records(KEYS.failed)[0]["error"] == error


# Dead letters of a claim


@pytest.mark.parametrize("tenant", [b"", b"acme"], ids=["no tenant", "a tenant"])
@pytest.mark.parametrize("how", ["expired", "requeued"])
def test_a_message_that_was_delivered_too_often_says_so(caller: Caller, tenant: bytes, how: str):
    """With its number of deliveries."""
    caller.settings.most = 2
    caller.enqueue(New(b"poison", tenant))
    for _ in range(2):
        taken = caller.claim().taken
        caller.expire() if how == "expired" else caller.requeue(taken)
    before = caller.now_us()
    caller.claim()
    (record,) = caller.records(KEYS.dead_letter)
    assert (record["id"], record["reason"], record["deliveries"]) == (taken[0].id.hex(), "deliveries", 2)
    assert record.get("tenant") == (tenant.decode() or None)
    assert before <= microseconds(record, "finished") <= caller.now_us()
    assert faults(caller.client) == []


@pytest.mark.promise(
    "A message older than `message_ttl_seconds` is dead-lettered with that reason, its id and its tenant instead of "
    "being delivered."
)
def test_a_message_that_is_too_old_says_so(caller: Caller):
    """And when it was published."""
    caller.settings.ttl_us = HOUR_US
    (id,) = caller.publish_all([b"old"])
    before = caller.now_us()
    age(caller, KEYS.pending, 2 * HOUR_US)
    caller.claim()
    (record,) = caller.records(KEYS.dead_letter)
    assert (record["id"], record["reason"], record["deliveries"]) == (id.hex(), "expired", 0)
    assert microseconds(record, "published") <= before - 2 * HOUR_US


@pytest.mark.parametrize("payload", PAYLOADS[:5], ids=len)
def test_foreign_bytes_have_a_record_without_an_id(caller: Caller, payload: bytes):
    """Of them nothing is known but what they are."""
    caller.client.rpush(KEYS.pending, payload)
    caller.claim()
    (record,) = caller.records(KEYS.dead_letter)
    assert record.keys() == {"bytes", "sha1", "finished", "reason"}
    assert record["reason"] == "foreign"
    assert faults(caller.client) == []


def test_extras_that_are_no_object_do_not_keep_a_message_from_its_list(stage: Stage, subtests: pytest.Subtests):
    """Somebody else has written them; the payload is what counts, and nothing is done by halves."""
    for extras, how in product(
        [b"no JSON", b"", b"[1", b"null", b"[]", b"7", b'"text"', b"\xff\x00"], ["settled", "dead"]
    ):
        with row(subtests, extras=extras, how=how):
            caller = stage.clear()
            body = bytes([0x84]) + bytes(16) + (1_800_000_000_000_000).to_bytes(8, "big")
            caller.client.rpush(KEYS.pending, body + len(extras).to_bytes(2, "big") + extras + b"payload")
            caller.publish(b"next")
            if how == "settled":
                assert caller.settle(caller.claim().taken, kept=KEYS.dead_letter) == b"1"
            else:
                caller.settings.most = 1
                caller.claim()
                caller.expire()
                assert caller.claim().payloads == [b"next"]
            assert caller.client.lrange(KEYS.dead_letter, 0, -1) == [b"payload"]
            assert faults(caller.client) == []


# Keeping to the list


@every_list
def test_records_lie_as_their_payloads_do(caller: Caller, kept: str):
    """Newest left, one beside each, in batches and one by one."""
    caller.settle(caller.hold(*numbered(5)), kept=kept)
    for payload in numbered(3, "single"):
        caller.settle(caller.hold(payload), kept=kept)
    assert caller.client.lrange(kept, 0, -1) == [*numbered(3, "single")[::-1], *numbered(5)[::-1]]
    assert faults(caller.client) == []


def test_records_are_trimmed_with_their_list(stage: Stage, subtests: pytest.Subtests):
    """Those that are cut off are the oldest, on both sides."""
    for kept, limit in product(LISTS, [1, 3, 7, 10]):
        with row(subtests, kept=kept, limit=limit):
            caller = stage.clear()
            caller.settle(caller.hold(*numbered(5, "old")), kept=kept, limit=limit)
            caller.settle(caller.hold(*numbered(5, "new")), kept=kept, limit=limit)
            payloads = (numbered(5, "old") + numbered(5, "new"))[::-1][:limit]
            assert caller.client.lrange(kept, 0, -1) == payloads
            assert faults(caller.client) == []


@pytest.mark.promise("The limit of a list also limits its records.")
def test_records_of_dead_letters_are_trimmed_with_them(caller: Caller):
    """By the claim that puts them there."""
    caller.settings.most, caller.settings.dlq_limit = 1, 3
    caller.hold(*numbered(5))
    caller.expire()
    caller.claim()
    assert caller.client.lrange(KEYS.dead_letter, 0, -1) == numbered(5)[::-1][:3]
    assert faults(caller.client) == []


def cut_the_oldest(caller: Caller, kept: str) -> None:
    caller.client.ltrim(kept, 0, 1)


def cut_all(caller: Caller, kept: str) -> None:
    caller.client.delete(kept)


def cut_the_records(caller: Caller, kept: str) -> None:
    caller.client.delete(records_beside(kept))


def cut_old_records(caller: Caller, kept: str) -> None:
    caller.client.ltrim(records_beside(kept), 0, 1)


@pytest.mark.promise("If you edit a list by hand, the list is right, and the next write repairs its records.")
def test_the_next_write_heals_what_an_operator_has_cut(stage: Stage, subtests: pytest.Subtests):
    """Every record lies beside its own payload again, and there are no more records than payloads."""
    for kept, cut in product(LISTS, [cut_the_oldest, cut_all, cut_the_records, cut_old_records]):
        with row(subtests, kept=kept, cut=cut):
            caller = stage.clear()
            caller.settle(caller.hold(*numbered(5)), kept=kept)
            cut(caller, kept)
            caller.settle(caller.hold(b"one", b"two"), kept=kept)
            payloads, records = caller.client.lrange(kept, 0, -1), caller.records(kept)
            assert payloads[:2] == [b"two", b"one"]
            assert 2 <= len(records) <= len(payloads)
            for payload, record in zip(payloads, records, strict=False):
                assert record["sha1"] == hashlib.sha1(payload).hexdigest()


@every_list
@pytest.mark.parametrize("limit", [0, 4])
def test_payloads_of_an_operator_have_no_records_and_disturb_none(caller: Caller, kept: str, limit: int):
    """What he puts in on the right stays without; the newest have theirs."""
    caller.client.rpush(kept, *numbered(3, "strange"))
    caller.settle(caller.hold(b"one", b"two"), kept=kept, limit=limit)
    assert caller.client.lrange(kept, 0, -1)[:3] == [b"two", b"one", b"strange 0"]
    assert [record["sha1"] for record in caller.records(kept)] == [
        hashlib.sha1(payload).hexdigest() for payload in (b"two", b"one")
    ]


def test_a_payload_that_is_taken_out_by_hand_leaves_a_record_too_many_until_the_next_write(caller: Caller):
    """There are never more records than payloads for longer, wherever it was taken out."""
    caller.settle(caller.hold(*numbered(5)), kept=KEYS.failed)
    caller.client.lrem(KEYS.failed, 0, b"message 3")
    caller.settle(caller.hold(b"next"), kept=KEYS.failed)
    assert caller.client.llen(KEYS.failed) == len(caller.records(KEYS.failed)) == 5
    assert caller.records(KEYS.failed)[0]["sha1"] == hashlib.sha1(b"next").hexdigest()


def test_every_message_of_a_batch_has_its_own_record(caller: Caller):
    """Each with its own id, tenant, count and digest; they share the reason and the time."""
    caller.requeue(caller.hold(b"returned", tenant="acme"))
    caller.publish(b"plain")
    held = caller.claim(2).taken
    caller.settle(held, kept=KEYS.failed, note={"reason": "together"})
    records = caller.records(KEYS.failed)
    assert [(one["id"], one.get("tenant"), one["deliveries"], one["reason"]) for one in records] == [
        (one.id.hex(), one.tenant, one.count, "together") for one in reversed(held)
    ]
    assert len({one["finished"] for one in records}) == 1


def test_a_stale_holder_leaves_no_record(caller: Caller, other: Caller):
    """Where nothing is settled, nothing is remembered."""
    stale = caller.hold(b"first")
    caller.expire()
    other.claim()
    caller.settle(stale, kept=KEYS.failed, note={"reason": "stale"})
    assert not caller.client.exists(KEYS.failed, KEYS.records("failed"))


@pytest.mark.parametrize("note", ["no JSON", "{", '{"reason": }'])
def test_a_note_that_is_no_json_fails_the_script_and_nothing_has_changed(caller: Caller, note: str):
    """The message stays with its holder."""
    held = caller.hold(b"first")
    before = dump(caller.client)
    with pytest.raises(redis.ResponseError):
        caller.settle(held, kept=KEYS.failed, note=note)
    assert dump(caller.client) == before
