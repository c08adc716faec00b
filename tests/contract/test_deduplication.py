"""A message that was published before is suppressed within its window."""

import asyncio
import hashlib
from typing import Any

import pytest

from tests.contract.shells import Shell, fail, take
from tests.tables import row

pytestmark = pytest.mark.topic("Deduplication")


@pytest.mark.promise(
    "With deduplication, the first publish of a key returns `True`; a repeat within the window returns `False` and "
    "stores nothing."
)
@pytest.mark.promise("A suppressed duplicate is not stored.")
async def test_a_repetition_is_suppressed(shell: Shell) -> None:
    """True for the first, False for the rest, and one message in the line; another text is another message."""
    queue = shell.queue(deduplication=True)
    assert [await queue.publish(text) for text in ("order:1", "order:1", "order:2", "order:1")] == [
        True,
        False,
        True,
        False,
    ]
    assert [await take(queue), await take(queue)] == [b"order:1", b"order:2"]
    assert shell.pending(queue) == 0


@pytest.mark.promise("Deduplication is off by default and then writes nothing to Redis.")
async def test_deduplication_is_off_by_default_and_leaves_no_marker(shell: Shell) -> None:
    """Neither said nothing nor said False writes a key beside the line."""
    for queue in (shell.queue(), shell.queue(deduplication=False)):
        assert await queue.publish("same") is True
        assert await queue.publish("same") is True
    assert shell.leftovers(queue) == {b"q::pending"}
    assert shell.pending(queue) == 4


@pytest.mark.promise("Two dicts with the same items have the same deduplication key, whatever the order of their keys.")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"o": {"x": [1], "y": None}}, {"o": {"y": None, "x": [1]}}),
        ({"l": [{"a": 1, "b": 2}]}, {"l": [{"b": 2, "a": 1}]}),
        ({"größe": "漢", "a": 0}, {"a": 0, "größe": "漢"}),
    ],
    ids=["flat", "nested", "in a list", "beyond ascii"],
)
async def test_a_dict_counts_by_content_not_by_the_order_of_its_keys(
    shell: Shell, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """At any depth: the hash is taken of the canonical form."""
    queue = shell.queue(deduplication=True)
    assert [await queue.publish(one), await queue.publish(other)] == [True, False]


@pytest.mark.promise("Two dicts with the same items have the same deduplication key, whatever the order of their keys.")
async def test_different_content_is_a_different_message(shell: Shell, subtests: pytest.Subtests) -> None:
    """Values, their types, the order of a list and every character count."""
    for one, other in [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": 1.5}),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ("a", "a "),
        ("é", "e\u0301"),
    ]:
        with row(subtests, one=one, other=other):
            shell.redis.flushall()
            queue = shell.queue(deduplication=True)
            assert [await queue.publish(one), await queue.publish(other)] == [True, True]


@pytest.mark.promise("Without `get_deduplication_key`, the deduplication key is the SHA-256 of the content.")
async def test_without_a_key_function_the_key_is_the_sha256_of_the_content(shell: Shell) -> None:
    """Of a text, its UTF-8; so an operator can find the marker of a message."""
    queue = shell.queue(deduplication=True)
    await queue.publish("żółć")
    digest = hashlib.sha256("żółć".encode()).hexdigest()
    assert shell.redis.exists(queue.key.deduplication(digest))


@pytest.mark.promise(
    "With `get_deduplication_key`, only the key that it returns decides whether a message is a duplicate."
)
async def test_a_key_function_decides_what_a_repetition_is(shell: Shell) -> None:
    """Same key: suppressed although the content differs. Other key: published although it does not."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: message["order"])
    assert await queue.publish({"order": "1", "note": "first"}) is True
    assert await queue.publish({"order": "1", "note": "second"}) is False
    assert await queue.publish({"order": "2", "note": "first"}) is True


@pytest.mark.promise(
    "`get_deduplication_key` is called once per publish with the message itself, even if the publish is retried."
)
async def test_the_key_function_is_called_once_a_publish_with_the_message_itself(shell: Shell) -> None:
    """Also for one that is suppressed, and also where the queue is full and asks again and again."""
    asked: list[Any] = []

    def key(message: Any) -> str:
        asked.append(message)
        return str(message["id"])

    queue = shell.queue(
        deduplication=True,
        get_deduplication_key=key,
        max_pending_length=1,
        pending_overload_policy="block",
        pending_overload_block_timeout_seconds=0.15,
    )
    first, again, refused = {"id": 1}, {"id": 1}, {"id": 2}
    await queue.publish(first)
    await queue.publish(again)
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish(refused)
    assert [one is other for one, other in zip(asked, [first, again, refused], strict=True)] == [True] * 3


@pytest.mark.promise('A deduplication key of `None` or `""` raises `ConfigurationError` before anything is written.')
@pytest.mark.parametrize("key", [None, ""])
async def test_an_empty_key_is_refused_before_anything_is_written(shell: Shell, key: Any) -> None:
    """Otherwise all messages without a key would suppress each other."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: key)
    with pytest.raises(shell.module.ConfigurationError, match="get_deduplication_key") as refusal:
        await queue.publish("a")
    assert (refusal.value.queue, refusal.value.operation) == ("q", "publish")
    assert isinstance(refusal.value, ValueError)
    assert shell.is_empty


@pytest.mark.promise("A deduplication key that is not a `str` raises `TypeError` before anything is written.")
@pytest.mark.parametrize("key", [7, 0, False, b"key", ["key"], {"key": 1}, object()])
async def test_a_key_that_is_no_text_is_a_type_error_before_anything_is_written(shell: Shell, key: Any) -> None:
    """Nothing is converted on the quiet: 7 and "7" might be two things to the user."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: key)
    with pytest.raises(TypeError, match="get_deduplication_key") as refusal:
        await queue.publish("a")
    assert isinstance(refusal.value, shell.module.RedisMessageQueueError)
    assert shell.is_empty


@pytest.mark.promise("A deduplication key that is not a `str` raises `TypeError` before anything is written.")
async def test_a_key_with_a_lone_surrogate_is_refused_by_name(shell: Shell) -> None:
    """UTF-8 cannot encode it, so it gets one of our errors before anything is written."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: "k\ud800")
    with pytest.raises(shell.module.RedisMessageQueueError, match="get_deduplication_key") as refusal:
        await queue.publish("a")
    assert isinstance(refusal.value, ValueError)
    assert shell.is_empty


@pytest.mark.promise("An exception from `get_deduplication_key` reaches the caller unchanged.")
async def test_what_a_key_function_raises_reaches_the_publisher_as_it_is(shell: Shell) -> None:
    """A missing field fails loudly, and nothing is written."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: message["order"])
    with pytest.raises(KeyError) as error:
        await queue.publish({})
    assert error.value.args == ("order",)
    assert shell.is_empty


@pytest.mark.promise("An exception from `get_deduplication_key` reaches the caller unchanged.")
async def test_a_stop_iteration_of_a_key_function_is_not_mistaken_for_an_end(shell: Shell) -> None:
    """From the sync queue it comes out as itself; a coroutine of Python cannot raise it, and wraps it."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: next(iter(())))
    if shell.name == "sync":
        with pytest.raises(StopIteration):
            queue.queue.publish("a")
    else:
        with pytest.raises(RuntimeError) as wrapped:
            await queue.publish("a")
        assert isinstance(wrapped.value.__cause__, StopIteration)
    assert shell.is_empty


@pytest.mark.promise("In the async queue, `get_deduplication_key` may be an `async def` function.")
async def test_a_key_function_may_be_async_only_where_it_can_be_awaited(shell: Shell) -> None:
    """The asyncio queue awaits it; the sync queue refuses it at construction."""

    async def key(message: Any) -> str:
        await asyncio.sleep(0)
        return "always the same"

    if shell.name == "sync":
        with pytest.raises(shell.module.ConfigurationError, match=r"^get_deduplication_key "):
            shell.queue(deduplication=True, get_deduplication_key=key)
    else:
        queue = shell.queue(deduplication=True, get_deduplication_key=key)
        assert [await queue.publish("a"), await queue.publish("b")] == [True, False]


# The marker and its window


@pytest.mark.promise("A deduplication key stores the id of the message that was published first.")
async def test_the_marker_holds_the_id_of_its_message(shell: Shell) -> None:
    """The key holds the id of the message that suppressed the duplicate."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: "k")
    await queue.publish("a")
    async with queue.process_message():
        assert shell.redis.get(queue.key.deduplication("k")).hex() == queue.current_message().id


@pytest.mark.promise("Deduplication is per tenant: two tenants can publish the same key, and their keys never collide.")
async def test_each_tenant_has_keys_of_its_own(shell: Shell) -> None:
    """The same key for two tenants is two messages, and a third without a tenant; each suppresses its repetition."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: "k")
    for _ in range(2):
        published = [await queue.publish("m", **whose) for whose in ({}, {"tenant": "a"}, {"tenant": "b"})]
        assert published == ([True] * 3 if _ == 0 else [False] * 3)
    assert await queue.publish_many(["m", "n"], tenant="c") == [True, False]
    assert shell.redis.exists(queue.key.deduplication("k"), queue.key.deduplication("k", tenant="a")) == 2


@pytest.mark.promise("Deduplication is per tenant: two tenants can publish the same key, and their keys never collide.")
def test_keys_of_tenants_cannot_be_taken_for_others(shell: Shell) -> None:
    """Whatever is in a key or in the name of a tenant."""
    key = shell.queue().key
    made = [
        key.deduplication(text, tenant)
        for tenant in (None, "a", "a:", "1", "1:a", "")
        for text in ("b", ":b", "1:a:b", "a:b")
    ]
    assert len(set(made)) == len(made)


@pytest.mark.promise("Each deduplication key is one Redis string of less than 200 bytes that expires with the window.")
async def test_a_marker_takes_less_than_two_hundred_bytes(shell: Shell) -> None:
    """As the server counts it, with a short name and a hash for a key: what people plan their memory with."""
    queue = shell.queue("jobs", deduplication=True)
    for number in range(50):
        await queue.publish({"number": number, "text": "x" * 500})
    markers = shell.redis.keys("jobs::deduplication::*")
    assert len(markers) == 50
    assert max(map(shell.redis.memory_usage, markers)) < 200


@pytest.mark.promise(
    "The deduplication window lasts an hour, or `message_deduplication_log_ttl_seconds`; it is the TTL of one key."
)
@pytest.mark.promise("Each deduplication key is one Redis string of less than 200 bytes that expires with the window.")
async def test_the_window_is_an_hour_unless_the_gateway_says_otherwise(shell: Shell) -> None:
    """Read from the marker's own time to live."""
    usual = shell.queue("usual", deduplication=True, get_deduplication_key=str)
    chosen = shell.queue("chosen", window=90, deduplication=True, get_deduplication_key=str)
    await usual.publish("k")
    await chosen.publish("k")
    assert 3_500_000 < shell.redis.pttl(usual.key.deduplication("k")) <= 3_600_000
    assert 60_000 < shell.redis.pttl(chosen.key.deduplication("k")) <= 90_000


@pytest.mark.promise(
    "A duplicate does not extend the deduplication window, and after the window the message can be published again."
)
async def test_after_the_window_the_message_may_come_again(shell: Shell) -> None:
    """The marker goes by itself, and the next publish is a new message with a new window."""
    queue = shell.queue(window=0.2, deduplication=True)
    assert await queue.publish("a") is True
    await asyncio.sleep(0.3)
    assert await queue.publish("a") is True
    assert shell.pending(queue) == 2


@pytest.mark.promise(
    "A duplicate does not extend the deduplication window, and after the window the message can be published again."
)
async def test_a_suppressed_repetition_does_not_prolong_the_window(shell: Shell) -> None:
    """Or a message that is repeated often enough would never come again."""
    queue = shell.queue(deduplication=True, get_deduplication_key=str)
    await queue.publish("k")
    shell.redis.pexpire(queue.key.deduplication("k"), 50_000)
    assert await queue.publish("k") is False
    assert shell.redis.pttl(queue.key.deduplication("k")) <= 50_000


@pytest.mark.promise("The deduplication window outlives the message, whether it was acked, failed or dead-lettered.")
@pytest.mark.promise(
    "Publishing a payload again is suppressed while its deduplication window is open, even if the payload is in a "
    "tracking list."
)
async def test_the_window_stays_open_after_the_message_was_handled_or_failed(shell: Shell) -> None:
    """Deduplication belongs to publishing; what becomes of the message does not end it."""
    queue = shell.queue(deduplication=True)
    await queue.publish("handled")
    await queue.publish("failed")
    await take(queue)
    await fail(queue, ValueError())
    assert [await queue.publish("handled"), await queue.publish("failed")] == [False, False]


@pytest.mark.promise("All objects of one queue share the deduplication window; other queues do not.")
async def test_all_queue_objects_of_one_name_share_the_window_and_other_names_do_not(shell: Shell) -> None:
    """The markers are in Redis, under the queue's own name."""
    assert await shell.queue("a", deduplication=True).publish("m") is True
    assert await shell.queue("a", deduplication=True).publish("m") is False
    assert await shell.queue("b", deduplication=True).publish("m") is True


@pytest.mark.promise(
    "Checking and writing a deduplication key is atomic: of many concurrent publishes exactly one is stored."
)
async def test_of_many_concurrent_publishers_one_gets_through(shell: Shell) -> None:
    """The look and the write are one script."""
    queue = shell.queue(deduplication=True)

    async def publish() -> bool:
        return bool(await queue.publish("a"))

    assert sorted(await asyncio.gather(*[shell.beside(publish) for _ in range(10)])) == [False] * 9 + [True]
    assert shell.pending(queue) == 1


@pytest.mark.promise("A refused publish leaves no deduplication key behind.")
async def test_a_publish_that_a_full_queue_refused_leaves_no_marker(shell: Shell) -> None:
    """It was not published, so its repetition is none."""
    queue = shell.queue(deduplication=True, max_pending_length=1)
    await queue.publish("a")
    with pytest.raises(shell.module.QueueBackpressureError):
        await queue.publish("b")
    await take(queue)
    assert await queue.publish("b") is True


@pytest.mark.promise("A full queue still recognizes a duplicate.")
async def test_a_repetition_is_suppressed_by_a_full_queue_too(shell: Shell) -> None:
    """It takes no room, so there is nothing to refuse."""
    queue = shell.queue(deduplication=True, max_pending_length=1)
    await queue.publish("a")
    assert await queue.publish("a") is False


@pytest.mark.promise("A refused publish leaves no deduplication key behind.")
async def test_a_message_that_is_refused_leaves_no_marker(shell: Shell) -> None:
    """The payload rules come first."""
    queue = shell.queue(deduplication=True, get_deduplication_key=lambda message: "k", max_payload_bytes=3)
    with pytest.raises(shell.module.PayloadTooLargeError):
        await queue.publish("long")
    assert shell.is_empty
