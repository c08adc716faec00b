"""api.md: every public name, from the docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any

import redis_message_queue
import redis_message_queue.asyncio
from docs.reference.errors import error_classes
from docs.reference.markdown import code, doc, in_step, page, prose, sentence, table
from redis_message_queue import embedded, testing
from redis_message_queue.metrics import opentelemetry, prometheus


@dataclass(frozen=True)
class Shelf:
    """Names that are looked for together, and the page that says more about them."""

    title: str
    names: tuple[str, ...]
    more: str = ""


SHELVES = (
    Shelf("Queue", ("RedisMessageQueue", "RedisGateway"), "Their options: [Options](options.md)."),
    Shelf("What a handler receives", ("ReceivedMessage",)),
    Shelf(
        "Failures",
        ("RetryPolicy",),
        "How it is used: [How to delay and retry](../how-to/delay-and-retry.md).",
    ),
    Shelf(
        "What operators get",
        ("QueueStats", "MessageRecord", "RedriveSummary", "RunSummary"),
        "How they are used: [How to look after a queue](../how-to/operate.md).",
    ),
    Shelf(
        "Gateways of one's own",
        ("AbstractRedisGateway", "ClaimedMessage"),
        "How to write one: [How to write a gateway](../how-to/write-a-gateway.md).",
    ),
    Shelf(
        "Stopping",
        ("BaseGracefulInterruptHandler", "GracefulInterruptHandler", "EventDrivenInterruptHandler"),
        "How they are used: [How to shut down](../how-to/shut-down.md).",
    ),
    Shelf(
        "Processes",
        ("after_restore",),
        "When it is needed: [How to run many consumers](../how-to/run-many-consumers.md#snapshots).",
    ),
    Shelf("Events", ("QueueEvent", "EventOperation", "EventOutcome"), "One by one: [Events](events.md)."),
    Shelf("Errors", tuple(one.__name__ for one in error_classes()), "One by one: [Errors](errors.md)."),
)

NOT_CALLED = (
    "RedisMessageQueue",
    "RedisGateway",
    "AbstractRedisGateway",
    "ReceivedMessage",
    "BaseGracefulInterruptHandler",
    "ServerBinary",
    "Loss",
)
# What a class offers to its neighbours inside the library, not to its users.
INSIDE: dict[str, tuple[str, ...]] = {"Loss": ("meets", "take_back", "loses_the_request")}
# A field cannot have a docstring. One without a sentence is not shown: it is there for what is still to come.
FIELD_SENTENCES = {
    "ReceivedMessage": {
        "payload": "what was published: text if the client decodes responses, else bytes; a dict comes as its JSON",
    },
    "RetryPolicy": {
        "max_attempts": "how often a handler may fail with a message",
        "initial_delay_seconds": "the pause after the first failure",
        "multiplier": "how much longer each further pause is",
        "max_delay_seconds": "the longest pause",
        "jitter": "the part of a pause that is left to chance, 0 to 1",
        "retry_on": "exceptions that are tried again",
        "give_up_on": "exceptions that are not, though they are among those",
    },
    "QueueStats": {
        "pending": "messages that wait, of all tenants",
        "processing": "messages in flight, with those whose consumer has died",
        "delayed": "messages that wait for their time or their next attempt",
        "completed": "payloads in the completed list",
        "failed": "payloads in the failed list",
        "dead_letters": "payloads in the dead-letter list",
        "tenants": "tenants with waiting messages",
        "oldest_pending_seconds": "how long the oldest waiting message has been there, None if none waits",
    },
    "MessageRecord": {
        "payload": "what was published; None if somebody has cut it from its list",
        "id": "the message's id",
        "tenant": "whose message it is",
        "delivery_count": "how often it was delivered",
        "published_at": "when Redis took it",
        "claimed_at": "when its last handler got it",
        "finished_at": "when it left the queue",
        "due_at": "when a delayed message is due",
        "reason": "why it is where it is, such as `completed`, `failed`, `deliveries`, `expired` or `attempts used up`",
        "error_type": "the class of the exception that its handler raised",
        "error": "its text",
        "replay_of": "the id of the dead message that this one repeats",
        "headers": "what `get_headers` gave it to travel with, None for none",
    },
    "RedriveSummary": {
        "matched": "dead letters that were chosen",
        "redriven": "those that are messages again",
        "suppressed": "those whose deduplication key was taken, and that are still dead",
    },
    "RunSummary": {
        "handled": "messages that were acknowledged",
        "failed": "messages whose handler raised",
        "given_back": "messages that were returned unhandled",
    },
    "ClaimedMessage": {
        "stored_message": "the message as the gateway keeps it; the handler gets it as it is",
        "lease_token": "names this lease, and no other; the gateway gets it back with every change",
    },
    "ServerBinary": {
        "path": "where it is",
        "flavour": '`"redis"` or `"valkey"`',
        "version": "three numbers",
    },
}


def api_page() -> str:
    in_step("public names", (name for shelf in SHELVES for name in shelf.names), redis_message_queue.__all__)
    return page(
        "Names",
        "the docstrings",
        prose(f"""
            What can be imported from `redis_message_queue`. `redis_message_queue.asyncio` has the same names;
            {_differences()} there, and `process_message()` stands in an `async with`.
        """),
        *(part for shelf in SHELVES for part in _shelf(shelf, redis_message_queue)),
        "## redis_message_queue.embedded",
        prose("A real server for development and tests; see [How to test](../how-to/test-with-a-real-server.md)."),
        *(
            _entry(name, getattr(embedded, name))
            for name in embedded.__all__
            if name not in redis_message_queue.__all__
        ),
        *_adapters(),
        "## redis_message_queue.testing",
        prose("What tests do to a queue; see [How to test your handlers](../how-to/test-your-handlers.md)."),
        *(_entry(name, getattr(testing, name)) for name in testing.__all__ if name not in redis_message_queue.__all__),
    )


def _adapters() -> Iterator[str]:
    for module, page_of_it, extra in (
        (prometheus, "[How to measure](../how-to/metrics.md)", "Counts, durations and lengths for Prometheus"),
        (opentelemetry, "[How to trace](../how-to/trace.md)", "Spans, and the same numbers, for OpenTelemetry"),
    ):
        yield f"## {module.__name__}"
        yield prose(f"{extra}, with the extra `metrics`; see {page_of_it}.")
        yield from (_entry(name, getattr(module, name)) for name in module.__all__)


def _differences() -> str:
    here, there = (_public(module.RedisMessageQueue) for module in (redis_message_queue, redis_message_queue.asyncio))
    awaited = [code(name) for name, member in there.items() if inspect.iscoroutinefunction(member)]
    instead = "".join(f"{code(new)} stands for {code(old)}, and " for old, new in zip(*_only(here, there), strict=True))
    return f"{instead}{', '.join(awaited)} are awaited"


def _public(owner: type) -> dict[str, Any]:
    return {name: member for name, member in vars(owner).items() if not name.startswith("_")}


def _only(here: dict[str, Any], there: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What only one of the two has, in pairs: they differ in names, not in what they can do."""
    return [name for name in here if name not in there], [name for name in there if name not in here]


def _shelf(shelf: Shelf, module: ModuleType) -> Iterator[str]:
    yield f"## {shelf.title}"
    if shelf.more:
        yield shelf.more
    if shelf.title in ("Events", "Errors"):
        yield table(("name", ""), ((code(name), _first_line(getattr(module, name))) for name in shelf.names))
    else:
        yield from (_entry(name, getattr(module, name)) for name in shelf.names)


def _entry(name: str, thing: Any) -> str:
    parts = [f"### {name}"]
    # The constructors with many options have a page of their own, and what is never made by hand needs none.
    if name not in NOT_CALLED:
        parts.append(code(f"{name}{_signature(thing)}"))
    parts.append(doc(thing))
    if rows := list(_members(thing) if inspect.isclass(thing) else ()):
        parts.append(table(("member", ""), rows))
    return "\n\n".join(parts)


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """What the class itself offers: fields first, then methods and properties in the order of the source."""
    if is_dataclass(owner):
        told = FIELD_SENTENCES[owner.__name__]
        in_step(
            f"fields of {owner.__name__}", told, (one.name for one in fields(owner) if not one.name.startswith("_"))
        )
        yield from ((code(name), sentence(told[name])) for name in told if told[name])
    elif owner.__name__ in FIELD_SENTENCES:
        yield from ((code(name), sentence(told)) for name, told in FIELD_SENTENCES[owner.__name__].items())
    plain = []
    for name, member in _offered(owner).items():
        if name.startswith("_") or name in INSIDE.get(owner.__name__, ()):
            continue
        if isinstance(member, property) and not doc(member):
            plain.append(code(name))
        elif isinstance(member, property):
            yield code(name), doc(member)
        elif inspect.isfunction(member):
            yield code(f"{name}{_signature(member)}"), doc(member)
    if plain:
        yield ", ".join(plain), "What the name says."


def _offered(owner: type) -> dict[str, Any]:
    """With what it has from classes that have no entry of their own; a base that is public has one."""
    bases = [one for one in owner.__mro__ if one.__module__.startswith("redis_message_queue")]
    inherited = [one for one in bases if one is owner or getattr(redis_message_queue, one.__name__, None) is not one]
    return {name: member for one in reversed(inherited) for name, member in vars(one).items()}


def _signature(thing: Callable[..., Any]) -> str:
    signature = inspect.signature(thing)
    bare = [
        one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values() if one.name != "self"
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<Signals\.(\w+): \d+>", r"\1", text)


def _first_line(thing: Any) -> str:
    return doc(thing).split("\n\n")[0]
