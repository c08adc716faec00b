"""Exceptions of a user's code whose own methods raise: nothing that is made of their text can fail."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from redis_message_queue import ConfigurationTypeError, PayloadTypeError, RetryLater, RetryPolicy
from redis_message_queue.cli.log_format import JsonFormatter, TextFormatter
from tests.contract.shells import Awaited, Shell, take

pytestmark = pytest.mark.topic("Errors")


class Nameless(type):
    """A metaclass whose classes do not tell their names."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Unprintable(Exception, metaclass=Nameless):
    """Raises whatever is asked of it, and so does its class."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unfit:
    """A codec that can neither encode nor decode what says so."""

    def encode(self, message: str) -> bytes:
        if message == "unfit":
            raise Unprintable
        return message.encode()

    def decode(self, payload: bytes) -> str:
        if payload == b"damaged":
            raise Unprintable
        return payload.decode()


def refuse(*_: Any) -> Any:
    raise Unprintable


async def by_run(queue: Any, shell: Shell, handler: Any, **options: Any) -> None:
    await queue.run(shell.callback(handler), until_empty=True, **options)


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("way", ["run", "process_message", "process_messages"])
async def test_a_codec_whose_exception_cannot_be_printed_stops_no_queue(
    shell: Shell, way: str, partitions: int
) -> None:
    """The payload goes to the dead letters, and the messages around it are delivered."""
    queue, seen = shell.queue(wait=0, codec=Unfit(), partitions=partitions), list[str]()
    for payload in ("one", "damaged", "two"):
        await queue.publish(payload)
    if way == "run":
        await by_run(queue, shell, lambda message: seen.append(message.payload))
    elif way == "process_messages":
        size = -1
        while size != len(seen):
            size = len(seen)
            async with queue.process_messages(10) as batch:
                seen += [message.payload for message in batch]
    else:
        while (message := await take(queue)) is not None:
            seen.append(message)
    assert sorted(seen) == ["one", "two"]
    (record,) = await queue.records()
    assert (record.reason, record.error_type) == ("undecodable", "CorruptMessageError")
    assert "Unprintable" in record.error


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
async def test_a_message_that_such_a_codec_cannot_encode_is_refused(shell: Shell) -> None:
    """With an error of ours, by publish, publish_many, submit and schedule."""
    queue = Awaited(shell.queue(codec=Unfit()).queue)
    calls = [
        lambda: queue.publish("unfit"),
        lambda: queue.publish_many(["fit", "unfit"]),
        lambda: queue.submit("unfit"),
        lambda: queue.schedule("s", every_seconds=60, message="unfit"),
    ]
    for call in calls:
        with pytest.raises(PayloadTypeError, match=r"cannot be encoded by Unfit \(Unprintable\)"):
            await call()
    assert (await queue.stats()).pending == 0


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
@pytest.mark.parametrize(
    ("options", "where", "reason"),
    [
        ({}, "dead_letters", "failed"),
        ({"enable_failed_queue": True}, "failed", "failed"),
        ({"retry_policy": RetryPolicy(max_attempts=1)}, "dead_letters", "attempts used up"),
        ({"retry_policy": RetryPolicy(give_up_on=(Unprintable,))}, "dead_letters", "given up"),
    ],
    ids=str,
)
async def test_a_handler_whose_exception_cannot_be_printed_fails_as_any_other(
    shell: Shell, options: dict[str, Any], where: str, reason: str
) -> None:
    """The record has its class, and an empty text."""
    events = shell.events()
    queue = shell.queue(wait=0, on_event=events.listen, **options)
    await queue.publish("a")
    await by_run(queue, shell, refuse)
    (record,) = await queue.records(where)
    assert (record.reason, record.error_type, record.error) == (reason, "Unprintable", "")
    assert events.the("failed").exception_type == "Unprintable"


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
@pytest.mark.parametrize("batch_size", [None, 2])
async def test_it_is_retried_and_requeued_as_any_other(shell: Shell, batch_size: int | None, caplog: Any) -> None:
    """By a policy, as the cause of a RetryLater, and in a batch that fails."""
    queue, tries = shell.queue(wait=0, retry_policy=RetryPolicy(initial_delay_seconds=0)), list[int]()
    await queue.publish("a")

    def handle(received: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Unprintable
        if len(tries) == 2:
            raise RetryLater(0) from Unprintable()

    summary = await queue.run(shell.callback(handle), until_empty=True, wait_for_retries=True, batch_size=batch_size)
    assert (summary.handled, summary.retried) == (1, 2)
    for record in caplog.records:
        for formatter in (TextFormatter(tracebacks=True), JsonFormatter(tracebacks=True)):
            assert formatter.format(record)


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
@pytest.mark.filterwarnings("ignore:.* raised Unprintable:RuntimeWarning")
async def test_callbacks_whose_exceptions_cannot_be_printed_disturb_nothing(shell: Shell, caplog: Any) -> None:
    """A listener of events, and one of heartbeats that failed, are reported by their class."""
    queue = shell.queue(wait=0, on_event=shell.callback(refuse))
    await queue.publish("a")
    with caplog.at_level(logging.ERROR):
        assert await take(queue) is not None
    assert "on_event raised Unprintable" in caplog.text


@pytest.mark.promise("An exception of your code that cannot be printed stops no queue: it is treated as any other.")
async def test_functions_that_make_a_publish_fail_raise_their_own_exception(shell: Shell) -> None:
    """Nothing is published, and nothing takes the place of the exception."""
    for options in ({"deduplication": True, "get_deduplication_key": refuse}, {"get_headers": refuse}):
        queue = shell.queue(**options)
        with pytest.raises(Unprintable):
            await queue.publish("a")
        assert shell.pending(queue) == 0


@pytest.mark.parametrize("method", ["encode", "decode"])
async def test_a_codec_that_would_have_to_be_awaited_is_refused_when_the_queue_is_made(
    shell: Shell, method: str
) -> None:
    """No queue awaits a codec, sync or async: handlers would get coroutines."""

    async def work(self: Any, given: Any) -> Any:
        return given

    codec = type("Awaited", (Unfit,), {method: work})()
    with pytest.raises(ConfigurationTypeError, match=rf"Awaited\.{method} is an async function"):
        shell.queue(codec=codec)


async def test_a_codec_that_returns_an_awaitable_after_all_makes_a_dead_letter(shell: Shell) -> None:
    """It can only be seen when it is called."""

    async def later() -> str:
        return "a"

    class Late(Unfit):
        def decode(self, payload: bytes) -> Any:
            return later()

    queue, seen = shell.queue(wait=0, codec=Late()), list[Any]()
    await queue.publish("a")
    await by_run(queue, shell, lambda message: seen.append(message.payload))
    (record,) = await queue.records()
    assert (seen, record.reason) == ([], "undecodable")
    assert "awaitable" in record.error


@pytest.mark.parametrize(("kind", "wrong"), [(dict, [1]), (dict, 5), (list, {"a": 1}), (list, "a")])
async def test_a_queue_of_dicts_or_lists_takes_nothing_else(shell: Shell, kind: type, wrong: Any) -> None:
    """As it gives nothing else to a handler."""
    with pytest.raises(PayloadTypeError, match=f"message must be a {kind.__name__}, not {type(wrong).__name__}"):
        await shell.queue(codec=kind).publish(wrong)


def test_a_log_line_about_such_an_exception_is_complete() -> None:
    """Its traceback says that there is no text."""
    record = logging.LogRecord("a", logging.WARNING, "", 0, "text", (), None)
    record.handler_error = Unprintable()
    assert json.loads(JsonFormatter(tracebacks=True).format(record))["exception_type"] == "Unprintable"
