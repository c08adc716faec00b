"""What publishing a message without a tenant, a delay or a limit writes."""

import time

import pytest

from redis_message_queue.stored import envelope
from tests.lua.scripts_runner import KEYS, Caller, new_id, numbered


def test_the_server_stamps_the_time(caller: Caller):
    """Ages are measured with one clock, and it is the server's."""
    id = new_id()
    before = caller.client.time()
    caller.publish(b"first", id=id)
    after = caller.client.time()
    opened = envelope.Envelope(caller.client.lindex(KEYS.pending, 0))
    assert (opened.id, opened.payload, opened.tenant) == (id, b"first", None)
    assert before <= divmod(round(opened.published_at * 1_000_000), 1_000_000) <= after


def test_messages_leave_in_the_order_in_which_they_came(caller: Caller):
    """First in, first out; in one batch or one by one."""
    payloads = numbered(20)
    caller.publish_all(payloads)
    assert caller.claim(10).payloads == payloads[:10]
    assert [one.only.payload for one in caller.claim_one_by_one(10)] == payloads[10:]


def test_a_key_suppresses_until_its_window_ends(caller: Caller):
    """The marker names the message and lives for the length of the window."""
    id, marker = new_id(), KEYS.deduplication("a key")
    assert caller.publish(b"first", id=id, marker="a key") == 1
    assert caller.client.get(marker) == id
    assert 0 < caller.client.pttl(marker) <= caller.settings.window_ms
    assert caller.publish(b"second", marker="another key") == 1
    assert caller.publish(b"third", marker="a key") == 0
    caller.client.pexpire(marker, 1)
    time.sleep(0.01)
    assert caller.publish(b"fourth", marker="a key") == 1
    assert caller.claim(9).payloads == [b"first", b"second", b"fourth"]


def test_a_duplicate_leaves_the_marker_as_it_is(caller: Caller):
    """Neither its id nor its window begins anew."""
    caller.publish(b"first", marker="a key")
    caller.client.pexpire(KEYS.deduplication("a key"), 30_000)
    held_by = caller.client.get(KEYS.deduplication("a key"))
    assert caller.publish(b"second", marker="a key") == 0
    assert caller.client.get(KEYS.deduplication("a key")) == held_by
    assert caller.client.pttl(KEYS.deduplication("a key")) <= 30_000


@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_a_publish_works_however_many_tokens_the_wakeup_key_has(caller: Caller, tokens: int):
    """One is usual, more do no harm."""
    for _ in range(tokens):
        caller.client.lpush(KEYS.wakeup, "1")
    assert caller.publish(b"first", marker="a key") == 1
    assert caller.tokens() == max(1, tokens)
    assert caller.claim().payloads == [b"first"]
