"""Published messages arrive unchanged and in order."""

import asyncio
import json
import time

import pytest
import redis

from tests.contract.shells import EVERY_WIRING, Shell, claim_and_die, take

pytestmark = [pytest.mark.topic("Publishing"), pytest.mark.every_server]

every_wiring = pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)

TEXTS = [
    "order:1234",
    "",
    " ",
    "żółć 漢字 🐘",
    "nul \x00 and\r\nline ends\n$3\r\nabc\r\n",
    "\ufeffmark",
    "x" * 300_000,
]


@pytest.mark.promise("`publish()` returns `True`, and one handler receives the message.")
@pytest.mark.promise("A handler receives `str` or `bytes`, as its client decodes; a dict arrives as JSON.")
@pytest.mark.promise("`decode_responses` decides between `str` and `bytes`, and nothing else.")
@every_wiring
async def test_a_text_comes_back_as_it_was_published(shell: Shell) -> None:
    """publish() says True, and each handler gets one text, as str or bytes, as its client decodes."""
    queue = shell.queue()
    assert [await queue.publish(text) for text in TEXTS] == [True] * len(TEXTS)
    assert [await take(queue) for _ in TEXTS] == [shell.payload(text) for text in TEXTS]


@pytest.mark.promise("`publish()` returns `True`, and one handler receives the message.")
@pytest.mark.promise("A handler receives `str` or `bytes`, as its client decodes; a dict arrives as JSON.")
@every_wiring
async def test_a_dict_comes_back_as_json(shell: Shell) -> None:
    """Keys keep their order, numbers and nesting survive, and nothing is lost on the way."""
    message = {"user": "alice", "id": 7, "rate": 0.5, "tags": ["a", None, True], "inner": {"z": 1, "a": {}}}
    queue = shell.queue()
    assert await queue.publish(message) is True
    received = await take(queue)
    assert type(received) is type(shell.payload(""))
    assert json.loads(received) == message
    assert list(json.loads(received)) == list(message)


@pytest.mark.promise(
    "The queue works over RESP2 and RESP3, with and without decoding, and with or without the hand-packed command path."
)
@pytest.mark.promise("Deduplication never prevents the redelivery of a message after a crash.")
@every_wiring
async def test_a_message_goes_through_claim_ack_failure_and_redelivery(shell: Shell) -> None:
    """The whole life of messages, over every kind of connection."""
    queue = shell.queue(enable_completed_queue=True, enable_failed_queue=True, deduplication=True, max_delivery_count=2)
    assert [await queue.publish(text) for text in ("good", "bad", "poison", "good")] == [True, True, True, False]
    assert await take(queue) == shell.payload("good")
    with pytest.raises(LookupError):
        async with queue.process_message() as message:
            assert message == shell.payload("bad")
            raise LookupError("bad")
    for _ in range(2):
        assert await claim_and_die(queue) == shell.payload("poison")
        shell.lapse(queue)
    await queue.publish("last")
    async with queue.process_message() as message:
        assert message == shell.payload("last")
        received = queue.current_message()
        assert (received.payload, received.delivery_count, received.tenant) == (message, 1, None)
    assert shell.listed(queue.key.completed) == [b"last", b"good"]
    assert shell.listed(queue.key.failed) == [b"bad"]
    assert shell.listed(queue.key.dead_letter) == [b"poison"]
    assert (shell.pending(queue), shell.processing(queue)) == (0, 0)


@pytest.mark.promise(
    "The queue works over RESP2 and RESP3, with and without decoding, and with or without the hand-packed command path."
)
@every_wiring
async def test_only_a_plain_client_uses_the_hand_packed_path(shell: Shell) -> None:
    """The two ways of sending that these tests compare are really two."""
    assert shell.queue().queue._protocol.port._packs_by_hand is not shell.wiring.subclassed


@pytest.mark.promise("A queue does not disturb your own commands on the same client.")
@every_wiring
async def test_the_users_own_commands_on_the_same_client_get_their_own_answers(shell: Shell) -> None:
    """Between and inside deliveries, on the pool that the queue uses too."""
    queue, client = shell.queue(), shell.client

    async def get(key: str) -> object:
        answer = client.get(key)
        return answer if shell.name == "sync" else await answer

    shell.redis.set("mine", "own")
    assert await get("mine") == shell.payload("own")
    await queue.publish("a")
    async with queue.process_message():
        assert await get("mine") == shell.payload("own")
    assert await get("mine") == shell.payload("own")


@pytest.mark.promise("Messages are claimed in the order of publishing.")
async def test_messages_are_claimed_in_the_order_of_publishing(shell: Shell) -> None:
    """Across queue objects, too: the line is in Redis."""
    one, two = shell.queue(), shell.queue()
    for number in range(20):
        await (one if number % 2 else two).publish(str(number))
    assert [int(await take(one if number % 3 else two)) for number in range(20)] == list(range(20))


@pytest.mark.promise("Many producers and consumers can share a queue through any number of queue objects.")
async def test_concurrent_publishers_lose_and_double_nothing(shell: Shell) -> None:
    """Eight of them share one queue object; each one's messages keep their order."""
    queue = shell.queue(wait=0)

    async def publisher(name: str) -> None:
        for number in range(25):
            await queue.publish(f"{name}{number:02}")

    await asyncio.gather(*[shell.beside(lambda name=name: publisher(name)) for name in "abcdefgh"])
    got = [(await take(queue)).decode() for _ in range(200)]
    assert await take(queue) is None
    assert sorted(got) == sorted(f"{name}{number:02}" for name in "abcdefgh" for number in range(25))
    for name in "abcdefgh":
        own = [text for text in got if text[0] == name]
        assert own == sorted(own)


@pytest.mark.promise("Text that is not ASCII is stored as UTF-8.")
async def test_text_beyond_ascii_is_stored_as_utf8(shell: Shell) -> None:
    """Both a str and the values and keys of a dict take the bytes of UTF-8, not six an escape."""
    queue = shell.queue(enable_completed_queue=True)
    await queue.publish("żółć 漢字")
    await queue.publish({"größe": "漢字"})
    newest, oldest = shell.listed(queue.key.pending)
    assert oldest.endswith("żółć 漢字".encode())
    assert newest.endswith('{"größe": "漢字"}'.encode())
    await take(queue)
    await take(queue)
    assert shell.listed(queue.key.completed) == ['{"größe": "漢字"}'.encode(), "żółć 漢字".encode()]


async def test_a_client_with_another_encoding_changes_neither_keys_nor_payloads(shell: Shell) -> None:
    """What is in Redis is UTF-8, whatever a client would make of its own strings."""
    queue = shell.queue("größe", client=shell.new_client(encoding="latin-1", decode_responses=True))
    await queue.publish("é 漢")
    assert shell.redis.llen("größe::pending") == 1
    assert await take(queue) == "é 漢"


@pytest.mark.promise("A pending message has no lease and no state besides its entry in the pending list.")
async def test_a_pending_message_waits_without_a_lease(shell: Shell) -> None:
    """Publishing fills the pending list and nothing else of the message's state."""
    queue = shell.queue()
    await queue.publish("a")
    assert shell.leftovers(queue) == {b"q::pending"}


@pytest.mark.promise("Without deduplication, publishing the same content twice stores two messages.")
async def test_the_same_text_published_twice_is_two_messages(shell: Shell) -> None:
    """Each with an id of its own, because deduplication is off unless it is asked for."""
    queue = shell.queue()
    assert await queue.publish("same") and await queue.publish("same")
    async with queue.process_message() as first:
        one = queue.current_message().id
        async with queue.process_message() as second:
            assert first == second
            assert queue.current_message().id != one


@pytest.mark.promise("The publishing time of a message comes from the server's clock.")
async def test_published_at_is_the_servers_time(shell: Shell) -> None:
    """Taken when the message entered the line, in UTC, and the same in every delivery."""
    queue = shell.queue()
    seconds, micros = shell.redis.time()
    await queue.publish("a")
    async with queue.process_message():
        published_at = queue.current_message().published_at
    after_seconds, after_micros = shell.redis.time()
    assert published_at.utcoffset().total_seconds() == 0
    assert seconds + micros / 1e6 - 1e-3 <= published_at.timestamp() <= after_seconds + after_micros / 1e6 + 1e-3


@pytest.mark.promise("A publish to a key of the wrong type fails and changes nothing.")
@pytest.mark.promise("A refusal by a script raises `LuaScriptError` from the server's error.")
async def test_a_wrong_typed_pending_key_fails_the_publish_and_stays_as_it_was(shell: Shell) -> None:
    """The script refuses before it writes; the error is a ResponseError too, with the server's as its cause."""
    queue = shell.queue(deduplication=True)
    shell.redis.set(queue.key.pending, "not a list")
    started = time.monotonic()
    with pytest.raises(shell.module.LuaScriptError) as refusal:
        await queue.publish("a")
    assert time.monotonic() - started < 60, "a refusal is not transient and must not be retried"
    assert refusal.value.operation == "publish"
    assert isinstance(refusal.value, redis.exceptions.ResponseError)
    assert isinstance(refusal.value.__cause__, redis.exceptions.ResponseError)
    assert shell.leftovers(queue) == {b"q::pending"}
    assert shell.redis.get(queue.key.pending) == b"not a list"


@pytest.mark.promise("A publish to a key of the wrong type fails and changes nothing.")
async def test_a_wrong_typed_deduplication_key_fails_the_publish_and_stores_nothing(shell: Shell) -> None:
    """Fail closed: a marker that cannot be read is no licence to publish."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: message)
    shell.redis.lpush(queue.key.deduplication("a"), "not a string")
    with pytest.raises(shell.module.LuaScriptError):
        await queue.publish("a")
    assert shell.pending(queue) == 0


@pytest.mark.promise("Queues with different names do not affect each other.")
async def test_queues_of_different_names_do_not_see_each_other(shell: Shell) -> None:
    """Not even where one name begins with the other."""
    short, long = shell.queue("q", wait=0), shell.queue("q::pendings", wait=0)
    await long.publish("theirs")
    assert await take(short) is None
    assert await take(long) == b"theirs"
