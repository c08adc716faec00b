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
from docs.reference.markdown import check_complete, code, doc, doc_with_sections, page, prose, sentence, table
from redis_message_queue import embedded, payloads, tasks, testing
from redis_message_queue.metrics import opentelemetry, prometheus


@dataclass(frozen=True)
class Section:
    """Names that belong together, and a link to the page that says more about them."""

    title: str
    names: tuple[str, ...]
    more: str = ""


SECTIONS = (
    Section("Queue", ("RedisMessageQueue", "RedisGateway"), "The options of both: [Options](options.md)."),
    Section("What a publisher receives", ("Receipt",)),
    Section("What a handler receives", ("ReceivedMessage",)),
    Section(
        "Several queues in one process",
        ("run_queues",),
        "See [How to run many consumers](../how-to/run-many-consumers.md#several-queues).",
    ),
    Section(
        "Failures",
        ("RetryPolicy", "HandlerOutcome", "RetryLater", "Discard", "DeadLetter"),
        "See [How to delay and retry](../how-to/delay-and-retry.md).",
    ),
    Section("Schedules", ("Schedule",), "See [How to schedule messages](../how-to/schedule.md)."),
    Section(
        "Results for operators",
        (
            "QueueStats",
            "MessageRecord",
            "TraceEntry",
            "ConnectedWorker",
            "Explanation",
            "RedriveSummary",
            "RunSummary",
            "queues",
            "RegisteredQueue",
            "open_registered",
        ),
        "See [How to look after a queue](../how-to/operate.md).",
    ),
    Section(
        "Custom gateways",
        ("AbstractRedisGateway", "ClaimedMessage"),
        "See [How to write a gateway](../how-to/write-a-gateway.md).",
    ),
    Section(
        "Stopping",
        ("BaseGracefulInterruptHandler", "GracefulInterruptHandler", "EventDrivenInterruptHandler"),
        "See [How to shut down](../how-to/shut-down.md).",
    ),
    Section(
        "Processes",
        ("after_restore",),
        "See [How to run many consumers](../how-to/run-many-consumers.md#snapshots).",
    ),
    Section("Events", ("QueueEvent", "EventOperation", "EventOutcome"), "Every event in detail: [Events](events.md)."),
    Section("Errors", tuple(one.__name__ for one in error_classes()), "Every error in detail: [Errors](errors.md)."),
)

NOT_CALLED = (
    "RedisMessageQueue",
    "RedisGateway",
    "AbstractRedisGateway",
    "ReceivedMessage",
    "HandlerOutcome",
    "Task",
    "AsyncTask",
    "BaseGracefulInterruptHandler",
    "ServerBinary",
    "Loss",
)
# Public members that are meant for other modules of the library, not for users.
INSIDE: dict[str, tuple[str, ...]] = {"Loss": ("meets", "take_back", "loses_the_request")}
# Descriptions of fields, which cannot have docstrings.
FIELD_SENTENCES = {
    "ReceivedMessage": {
        "payload": "the published message: `str` if the client decodes responses, otherwise `bytes`; a dict arrives "
        "as JSON. With a codec, the object that was published",
    },
    "RetryPolicy": {
        "max_attempts": "how often the handler may fail with one message",
        "initial_delay_seconds": "the pause after the first failure",
        "multiplier": "the factor between one pause and the next",
        "max_delay_seconds": "the longest pause",
        "jitter": "the largest random part that is subtracted from a pause, as a fraction from 0 to 1",
        "retry_on": "exceptions to retry",
        "give_up_on": "exceptions never to retry, even if they are among `retry_on`",
    },
    "Receipt": {
        "id": "the id of the message, the same in its events, its journal entries and its deliveries",
        "accepted": "whether it was stored; False if deduplication suppressed it",
        "duplicate_of": "for a duplicate, the id of the message that holds the deduplication key",
    },
    "Schedule": {
        "name": "what it is called in its queue",
        "cron": "its cron expression, None if it has an interval",
        "every_seconds": "its interval, None if it has a cron expression",
        "timezone": "the time zone of the cron expression",
        "payload": "the message that it publishes",
        "tenant": "the tenant of its messages",
        "headers": "the headers of its messages, without `schedule` and `scheduled_for`",
        "missed": "what becomes of missed ticks: `one`, `all` or `skip`",
        "created_at": "when it was first defined",
        "last_tick": "the last tick that has a message, None before the first",
        "next_tick": "when its next tick is due, None if there is none within 50 years",
        "error": "why consumers of this installation cannot follow it, None if they can",
    },
    "QueueStats": {
        "pending": "messages that wait, including those of all tenants",
        "processing": "messages in flight, including those whose consumer has died",
        "delayed": "messages that wait for their time or their next attempt",
        "completed": "payloads in the completed list",
        "failed": "payloads in the failed list",
        "dead_letters": "payloads in the dead-letter list",
        "tenants": "tenants with waiting messages",
        "oldest_pending_seconds": "how long the oldest waiting message has waited, None if none waits",
        "paused": "whether the queue is paused",
        "paused_tenants": "how many tenants are paused, with or without messages",
    },
    "ConnectedWorker": {
        "consumer": "what `MessageRecord.consumer` says of its messages: `name@host:pid`, or `host:pid`",
        "name": "the `consumer_name` of its queue, None without one",
        "host": "the host that it runs on",
        "pid": "its process id",
        "version": "the version of this library there",
        "concurrency": "how many handlers it runs at the same time, at most",
        "since": "when its loop began",
        "last_claim": "when it last claimed a message, None if it never has; at most 10 seconds out of date",
        "lease_seconds": "how long its leases are, None without leases",
    },
    "Explanation": {
        "id": "the message's id",
        "cause": "one word for programs, such as `waiting`, `paused` or `dead_letter`",
        "sentence": "why the message is not done, or what became of it",
        "facts": "what the sentence is based on, by name",
    },
    "MessageRecord": {
        "payload": "the published message; None if the payload was removed from its list",
        "id": "the message's id",
        "tenant": "the tenant it belongs to",
        "delivery_count": "how often it was delivered",
        "published_at": "when Redis stored it",
        "claimed_at": "when its last handler received it",
        "finished_at": "when it left the queue",
        "due_at": "when a delayed message is due",
        "reason": "why it left the queue, such as `completed`, `failed`, `deliveries`, `expired` or `attempts used up`",
        "error_type": "the class of the exception that its handler raised",
        "error": "the text of that exception",
        "traceback": "the end of its traceback, at most 4 kB, if the queue keeps it (`keep_tracebacks`)",
        "replay_of": "the id of the dead letter that this message repeats",
        "headers": "the headers that `get_headers` returned for it, None without headers",
        "state": "where `get()` found it: `pending`, `delayed` or `processing`",
        "consumer": "who works on it, or had it when it failed: host and process id, and `consumer_name` if it has one",
        "cancelled": "whether `cancel()` has marked it, so that the claim that meets it drops it; for pending messages",
    },
    "TraceEntry": {
        "event": "what happened, as the [journal](../how-to/keep-a-journal.md#what-an-entry-contains) calls it",
        "at": "when, by the server's clock",
        "tenant": "the tenant of the message",
        "consumer": "who claimed it: host (of another host without a `consumer_name`: four bytes) and process id",
        "details": "the other fields of the entry, such as `count`, `reason`, `error_type` or `due`",
    },
    "RedriveSummary": {
        "matched": "dead letters that were selected",
        "redriven": "dead letters that were published again",
        "suppressed": "dead letters that stay because their deduplication key is in use",
    },
    "RegisteredQueue": {
        "name": "the name of the queue, with its hash tag if it has one",
        "key_separator": "what separates the parts of its Redis keys",
        "dead_letter_queue": "the key of its dead-letter list, None for the usual one",
        "partitions": "how many partitions it has",
    },
    "RunSummary": {
        "handled": "messages that were acknowledged",
        "failed": "messages that failed for good and are in the failed list, or removed where nothing keeps them",
        "requeued": "messages that were returned to the queue unhandled",
        "discarded": "messages whose handler raised `Discard`",
        "retried": "attempts after which the message waits for the next one",
        "attempts": "how often a message was given to the handler, whatever came of it",
        "dead_lettered": "messages that the handler or the retry policy gave up, and that are in the dead letters",
        "refused_at_claim": "dead letters that its claims found delivered too often, too old or unreadable",
        "left_behind": "messages that wait behind a retry of their tenant when a loop ends, with `ordered_tenants`",
        "unsettled": "messages that had a handler, or were to be requeued, and whose settlement Redis did not confirm",
        "stopped_by": "the signal that stopped the loop, or None",
    },
    "ClaimedMessage": {
        "stored_message": "the message as the gateway stores it; the handler receives it unchanged",
        "lease_token": "identifies this lease; the queue passes it to the gateway with every later call",
    },
    "ServerBinary": {
        "path": "the path of the executable",
        "flavour": '`"redis"` or `"valkey"`',
        "version": "the version as three numbers",
    },
}


def api_page() -> str:
    public = [name for name in redis_message_queue.__all__ if name != "__version__"]
    check_complete("public names", (name for section in SECTIONS for name in section.names), public)
    return page(
        "Names",
        "the docstrings",
        prose(f"""
            You can import these names from `redis_message_queue`. `redis_message_queue.asyncio` has the same names with
            these differences: {_differences()}, and you use `process_message()` with `async with`. `__version__` is the
            version of the release.
        """),
        *(part for section in SECTIONS for part in _section(section, redis_message_queue)),
        "## redis_message_queue.payloads",
        prose("Codecs for typed messages: see [How to publish and receive objects](../how-to/typed-messages.md)."),
        *(_entry(name, getattr(payloads, name)) for name in payloads.__all__),
        "## redis_message_queue.tasks",
        prose("Functions that you publish: see [Call functions later](../how-to/recipes/tasks.md)."),
        *(_entry(name, getattr(tasks, name)) for name in tasks.__all__),
        "## redis_message_queue.embedded",
        prose(
            "A real server for development and tests: see "
            "[How to test with a real server](../how-to/test-with-a-real-server.md)."
        ),
        *(
            _entry(name, getattr(embedded, name))
            for name in embedded.__all__
            if name not in redis_message_queue.__all__
        ),
        *_adapters(),
        "## redis_message_queue.testing",
        prose("Tools for testing your handlers: see [How to test your handlers](../how-to/test-your-handlers.md)."),
        *(_entry(name, getattr(testing, name)) for name in testing.__all__ if name not in redis_message_queue.__all__),
    )


def _adapters() -> Iterator[str]:
    for module, page_of_it, extra in (
        (prometheus, "[How to measure](../how-to/metrics.md)", "Counts, durations and lengths for Prometheus"),
        (opentelemetry, "[How to trace](../how-to/trace.md)", "Spans, and the same numbers, for OpenTelemetry"),
    ):
        yield f"## {module.__name__}"
        yield prose(f"{extra}. Install the extra `metrics`; see {page_of_it}.")
        yield from (_entry(name, getattr(module, name)) for name in module.__all__)


def _differences() -> str:
    here, there = (
        _public(_offered(module.RedisMessageQueue)) for module in (redis_message_queue, redis_message_queue.asyncio)
    )
    awaited = [code(name) for name, member in there.items() if inspect.iscoroutinefunction(member)]
    instead = "".join(f"{code(new)} replaces {code(old)}, and " for old, new in zip(*_only(here, there), strict=True))
    return f"{instead}you await {', '.join(awaited)}"


def _public(members: dict[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in members.items() if not name.startswith("_")}


def _only(here: dict[str, Any], there: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The names that only one of the two has, in pairs: both can do the same."""
    return [name for name in here if name not in there], [name for name in there if name not in here]


def _section(section: Section, module: ModuleType) -> Iterator[str]:
    yield f"## {section.title}"
    if section.more:
        yield section.more
    if section.title in ("Events", "Errors"):
        yield table(("name", ""), ((code(name), _first_line(getattr(module, name))) for name in section.names))
    else:
        yield from (_entry(name, getattr(module, name)) for name in section.names)


def _entry(name: str, thing: Any) -> str:
    parts = [f"### {name}"]
    # The constructors with many options have their own page. Classes that users never construct need no signature.
    if name not in NOT_CALLED:
        parts.append(code(f"{name}{_signature(thing)}"))
    parts.append(doc_with_sections(thing))
    if inspect.isclass(thing):
        members = list(_members(thing))
        if rows := [(what, says) for what, says in members if not _has_sections(says)]:
            parts.append(table(("member", ""), rows))
        parts += [f"#### {what}\n\n{says}" for what, says in members if _has_sections(says)]
    return "\n\n".join(parts)


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """The members of a class: fields first, then methods and properties in the order of the source."""
    if is_dataclass(owner):
        names = (one.name for one in fields(owner) if not one.name.startswith("_"))
        check_complete(f"fields of {owner.__name__}", FIELD_SENTENCES[owner.__name__], names)
    for name, text in FIELD_SENTENCES.get(owner.__name__, {}).items():
        yield code(name), sentence(text)
    plain = []
    for name, member in _offered(owner).items():
        if name.startswith("_") or name in INSIDE.get(owner.__name__, ()):
            continue
        if isinstance(member, property) and not doc(member):
            plain.append(code(name))
        elif isinstance(member, property):
            yield code(name), doc(member)
        elif inspect.isfunction(member):
            yield code(f"{name}{_signature(member)}"), doc_with_sections(member)
    if plain:
        yield ", ".join(plain), "Read-only properties."


def _has_sections(text: str) -> bool:
    return any(f"\n\n{title}:\n" in text for title in ("Args", "Returns", "Raises"))


def _offered(owner: type) -> dict[str, Any]:
    """The members of a class, including those of its private bases; a public base has its own entry."""
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
