"""Headers travel with a message: through delays, retries, hand-offs and redrives, and never into a journal."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from redis_message_queue import (
    ConfigurationError,
    ConfigurationTypeError,
    GatewayContractError,
    PayloadTypeError,
    PayloadValueError,
    RetryPolicy,
)
from redis_message_queue.stored.headers import MAX_HEADERS_BYTES
from redis_message_queue.values.errors import RedisMessageQueueError
from tests.contract.shells import (
    EVERY_WIRING,
    Awaited,
    Sent,
    Shell,
    claim_and_die,
    fail,
    silent_gateway,
    sync_only,
    take,
)

pytestmark = pytest.mark.topic("Headers")

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Ümläut": '日本 "quoted" \\ /'}


def tagged(shell: Shell, name: str = "q", **options: Any) -> Any:
    """A queue whose messages have headers."""
    return shell.queue(name, **{"wait": 0, "get_headers": shell.callback(lambda: HEADERS)} | options)


def numbered(shell: Shell) -> Callable[[], Any]:
    """Headers that say how often they were asked for."""
    numbers = count(1)
    return shell.callback(lambda: {"n": str(next(numbers))})


async def headers_of_next(queue: Any) -> dict[str, str] | None:
    async with queue.process_message() as message:
        return None if message is None else queue.current_message().headers


# Travelling


@pytest.mark.promise("What `get_headers` returns travels with the message and is `headers` of the received message.")
@pytest.mark.parametrize("wiring", EVERY_WIRING, ids=str)
async def test_a_message_arrives_with_the_headers_of_its_publisher(shell: Shell) -> None:
    """With its payload untouched, over every kind of connection; the consumer need not know of them."""
    await tagged(shell).publish({"order": 1})
    queue = shell.queue(wait=0)
    async with queue.process_message() as message:
        received = queue.current_message()
        assert message == shell.payload('{"order": 1}')
        assert (received.headers, received.queue) == (HEADERS, "q")


@pytest.mark.promise("What `get_headers` returns travels with the message and is `headers` of the received message.")
async def test_a_message_without_headers_has_an_empty_mapping(shell: Shell) -> None:
    """Whether nobody asked for them or the answer was empty."""
    await shell.queue(wait=0).publish("a")
    await shell.queue(wait=0, get_headers=shell.callback(dict)).publish("b")
    queue = shell.queue(wait=0)
    assert [await headers_of_next(queue), await headers_of_next(queue)] == [{}, {}]


@pytest.mark.promise("`get_headers` is called once per publish, and once for all messages of `publish_many()`.")
async def test_get_headers_is_called_once_per_publish(shell: Shell) -> None:
    """And once for all messages of publish_many, which were published together."""
    queue = shell.queue(wait=0, get_headers=numbered(shell))
    await queue.publish("a")
    await queue.publish_many(["b", "c"])
    await queue.publish("d", tenant="acme")
    numbers = [(await headers_of_next(queue) or {}).get("n") for _ in range(4)]
    assert sorted(map(str, numbers)) == ["1", "2", "2", "3"]


@pytest.mark.promise("Headers survive delays, retries, crashes and redrives, and work with tenants and deduplication.")
async def test_headers_go_with_tenants_delays_and_deduplication(shell: Shell) -> None:
    """A message with everything has its headers too, and a duplicate stays one."""
    queue = tagged(shell, deduplication=True)
    assert await queue.publish("m", tenant="acme", delay_seconds=3600) is True
    assert await queue.publish("m", tenant="acme") is False
    shell.ripen(queue)
    async with queue.process_message():
        received = queue.current_message()
        assert (received.headers, received.tenant) == (HEADERS, "acme")


@pytest.mark.promise("Headers survive delays, retries, crashes and redrives, and work with tenants and deduplication.")
async def test_headers_survive_failures_retries_and_crashes(shell: Shell) -> None:
    """Every delivery has them."""
    queue = tagged(shell, retry_policy=RetryPolicy(max_attempts=3))
    await queue.publish("m")
    await fail(queue, ValueError())
    shell.ripen(queue)
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await headers_of_next(queue) == HEADERS


@pytest.mark.promise("What `get_headers` returns travels with the message and is `headers` of the received message.")
async def test_headers_come_with_batches_and_loops(shell: Shell) -> None:
    """Each message has its own, as it was published."""
    queue = shell.queue(wait=0, get_headers=numbered(shell))
    for message in "abcd":
        await queue.publish(message)
    async with queue.process_messages(2) as batch:
        assert [one.headers["n"] for one in batch] == ["1", "2"]
    seen: list[str] = []
    await queue.run(lambda message: seen.append(message.headers["n"]), until_empty=True)
    assert seen == ["3", "4"]


@pytest.mark.promise("Results of a hand-off have the headers of the queue that they enter.")
async def test_results_of_a_hand_off_have_the_headers_of_their_queue(shell: Shell) -> None:
    """As if they were published there; those of the message are not handed on by themselves."""
    queue, target, plain = tagged(shell), tagged(shell, "t", get_headers=numbered(shell)), shell.queue("p", wait=0)
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        results = [(target.queue, "a"), (plain.queue, "b"), (target.queue, "c", {"tenant": "acme"})]
        await Awaited(batch[0]).complete(publish=results)
    found = [await headers_of_next(target), await headers_of_next(target)]
    assert sorted(map(str, found)) == ["{'n': '1'}", "{'n': '2'}"]
    assert await headers_of_next(plain) == {}


@pytest.mark.promise("Headers survive delays, retries, crashes and redrives, and work with tenants and deduplication.")
async def test_a_redriven_message_keeps_its_headers(shell: Shell) -> None:
    """Under its new id, however often it dies."""
    queue = tagged(shell, max_delivery_count=1)
    await queue.publish("m", tenant="acme")
    for _ in range(2):
        await claim_and_die(queue)
        shell.lapse(queue)
        assert await take(queue) is None
        (letter,) = await Awaited(queue).records()
        assert letter.headers == HEADERS
        await Awaited(queue).redrive_dead_letters()
    async with queue.process_message():
        received = queue.current_message()
        assert (received.headers, received.replay_of, received.tenant) == (HEADERS, letter.id, "acme")


@pytest.mark.promise("`peek()` and `records()` show headers; the journal never does.")
async def test_an_operator_sees_headers(shell: Shell) -> None:
    """Of what waits and of what has left: they lead from a failure to its trace."""
    queue = tagged(shell, enable_completed_queue=True, enable_failed_queue=True)
    await queue.publish_many(["good", "bad", "waits"])
    await take(queue)
    await fail(queue, ValueError())
    for source in ("pending", "completed", "failed"):
        (record,) = await Awaited(queue).peek(source=source)
        assert (source, record.headers) == (source, HEADERS)
        assert isinstance(hash(record), int)
    await shell.queue("plain", wait=0).publish("m")
    (bare,) = await Awaited(shell.queue("plain")).peek()
    assert bare.headers is None


@pytest.mark.promise("`peek()` and `records()` show headers, and so does a journal with payloads, but no other one.")
@pytest.mark.parametrize("journal", [True, "payload"])
async def test_headers_are_in_a_journal_with_payloads_only(shell: Shell, journal: Any) -> None:
    """They may hold as much as a payload does."""
    queue = tagged(shell, journal=journal, max_delivery_count=1)
    await queue.publish("m")
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    await Awaited(queue).redrive_dead_letters()
    await take(queue)
    told = repr(shell.redis.xrange(queue.key.journal))
    assert "redriven" in told
    assert ("0af7651916cd43dd8448eb211c80319c" in told) == (journal == "payload")


# Cost


@pytest.mark.promise("A queue without headers stores and sends nothing extra; with them, a chunk counts their size.")
async def test_a_queue_without_headers_stores_and_sends_what_it_always_did(shell: Shell) -> None:
    """25 bytes before the payload, by the shortest script; an empty answer adds nothing to what is stored."""
    for options in ({}, {"get_headers": shell.callback(dict)}):
        queue = shell.queue(wait=0, **options)
        await queue.publish("payload")
        (stored,) = shell.listed(queue.key.pending)
        assert len(stored) == 25 + len("payload")
        await take(queue)
    with Sent(shell.server) as sent:
        await tagged(shell).publish("m")
    assert len([line for line in sent.lines if line.startswith("EVALSHA")]) == 1


@pytest.mark.promise("A queue without headers stores and sends nothing extra; with them, a chunk counts their size.")
async def test_many_messages_with_long_headers_go_in_several_scripts(shell: Shell) -> None:
    """What travels along counts for the size of a chunk."""
    long = {"baggage": "x" * 16_000}
    queue = shell.queue(wait=0, get_headers=shell.callback(lambda: long))
    await queue.publish("warm up")
    with Sent(shell.server) as sent:
        assert await queue.publish_many(["m"] * 600) == [True] * 600
    assert len([line for line in sent.lines if line.startswith("EVALSHA")]) == 3


# Bad input


@pytest.mark.promise(
    "Invalid headers, or more than 16,384 bytes, are refused before anything is written, by an error that shows no "
    "value."
)
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (None, PayloadTypeError, "get_headers must return a mapping of str to str, not NoneType"),
        ([("a", "b")], PayloadTypeError, "get_headers must return a mapping of str to str, not list"),
        ({"a": 1}, PayloadTypeError, "get_headers returned a int for 'a'"),
        ({"a": None}, PayloadTypeError, "get_headers returned a NoneType for 'a'"),
        ({1: "a"}, PayloadTypeError, "get_headers returned a name of type int"),
        ({"a": b"b"}, PayloadTypeError, "get_headers returned a bytes for 'a'"),
        ({"a": "\ud800"}, PayloadValueError, "get_headers returned a lone surrogate"),
        ({"a": "secret" * 3_000}, PayloadValueError, "and 16,384 is the most"),
    ],
)
async def test_what_are_no_headers_is_refused_before_anything_is_written(
    shell: Shell, given: Any, error: type[RedisMessageQueueError], words: str
) -> None:
    """The error names the option and what was wrong, and shows no value."""
    queue = shell.queue(wait=0, deduplication=True, get_headers=shell.callback(lambda: given))
    for publish in (queue.publish("m"), queue.publish("m", tenant="acme"), queue.publish_many(["m"])):
        with pytest.raises(error, match=words) as caught:
            await publish
        assert (caught.value.queue, caught.value.operation) == ("q", "publish")
        assert "secret" not in str(caught.value)
    assert shell.is_empty


@pytest.mark.promise(
    "Invalid headers, or more than 16,384 bytes, are refused before anything is written, by an error that shows no "
    "value."
)
async def test_headers_may_be_as_large_as_is_said(shell: Shell) -> None:
    """The limit counts them as JSON, with the key that they stand under; a redrive has room for its own mark."""
    largest = {"a": "x" * (MAX_HEADERS_BYTES - len('{"headers":{"a":""}}'))}
    queue = tagged(shell, get_headers=shell.callback(lambda: largest), max_delivery_count=1)
    await queue.publish("m")
    await claim_and_die(queue)
    shell.lapse(queue)
    await take(queue)
    await Awaited(queue).redrive_dead_letters()
    assert await headers_of_next(queue) == largest


@pytest.mark.promise(
    "Invalid headers, or more than 16,384 bytes, are refused before anything is written, by an error that shows no "
    "value."
)
async def test_an_exception_in_get_headers_reaches_the_caller_of_publish(shell: Shell) -> None:
    """And nothing was published."""

    def refuse() -> dict[str, str]:
        raise LookupError("no context")

    queue = shell.queue(wait=0, get_headers=shell.callback(refuse))
    with pytest.raises(LookupError, match="no context"):
        await queue.publish("m")
    assert shell.is_empty


@pytest.mark.promise("Invalid headers written by another program do not stop a message from being handled.")
async def test_invalid_headers_of_another_program_do_no_harm(shell: Shell) -> None:
    """What is no text is left out, the message is handled, and its record can be read."""
    queue = shell.queue(wait=0, enable_completed_queue=True)
    for extras in (b'{"headers": {"a": 1e999, "b": "kept", "c": {}}}', b'{"headers": [1]}', b"[" * 5_000, b"\xff"):
        await queue.publish("m")
        stored = shell.redis.rpop(queue.key.pending)
        strange = bytes((stored[0] | 4,)) + stored[1:25] + len(extras).to_bytes(2, "big") + extras + stored[25:]
        shell.redis.lpush(queue.key.pending, strange)
        assert await headers_of_next(queue) == ({"b": "kept"} if b"kept" in extras else {})
    assert [one.headers for one in await Awaited(queue).records("completed")] == [None, None, None, {"b": "kept"}]


@pytest.mark.promise(
    "Invalid headers, or more than 16,384 bytes, are refused before anything is written, by an error that shows no "
    "value."
)
async def test_get_headers_must_be_callable(shell: Shell) -> None:
    """A mapping is not asked; a function that gives it is."""
    with pytest.raises(ConfigurationTypeError, match="get_headers must be callable or None, not dict"):
        shell.queue(get_headers={"a": "b"})


@pytest.mark.promise(
    "Invalid headers, or more than 16,384 bytes, are refused before anything is written, by an error that shows no "
    "value."
)
@sync_only
async def test_the_blocking_queue_takes_no_async_get_headers(shell: Shell) -> None:
    """It could not be awaited, and is refused when the queue is made."""

    async def get_headers() -> dict[str, str]:
        return {}

    with pytest.raises(ConfigurationError, match="get_headers is an async function"):
        shell.queue(get_headers=get_headers)


@pytest.mark.promise(
    "Invalid headers, or more than 16,384 bytes, are refused before anything is written, by an error that shows no "
    "value."
)
async def test_a_custom_gateway_offers_no_headers(shell: Shell) -> None:
    """Its contract has no word for them: that is said when the queue is made, not found out by a missing trace."""
    with pytest.raises(GatewayContractError, match="get_headers is not part of the contract of a custom gateway"):
        shell.queue(gateway=silent_gateway(shell), get_headers=shell.callback(dict))
