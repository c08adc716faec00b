"""Checks one queue: its name, the types of its keys, and whether a message can go through."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.clients import node_of, text_of
from redis_message_queue.cli.doctor.check_result import CheckResult, advice, grant_for, ok, problem, report_refusals
from redis_message_queue.options.declared import MOST_PARTITIONS
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.stored.keys import KEY_MAP, REGISTRY_KEY, QueueKeys, partition_keys, refuse_reserved_words
from redis_message_queue.values.errors import ConfigurationError, RedisMessageQueueError

TEST_QUEUE = "rmq-doctor"
# How a script reports a missing permission, on 7 and on 6.2.
_FORBIDDEN = ("NOPERM", "ACL failure", "can't run this command")
_NOW, _LATER = "now", "later"
_RETRY_BUDGET_SECONDS = 3.0
_SHOWN = 10  # tenants whose pauses differ


def keys_of(name: str, separator: str, *, hash_tag: bool) -> QueueKeys | CheckResult:
    """Return the keys of a queue, or why the name cannot be used."""
    check = "name"
    try:
        refuse_reserved_words(name, separator)
        check = "hash tag"
        return QueueKeys.of(name, separator=separator, hash_tag=hash_tag)
    except ConfigurationError as error:
        return problem(check, str(error), "rename the queue")


@report_refusals("keys")
def check_key_types(client: Any, keys: QueueKeys) -> Iterator[CheckResult]:
    """Check whether each key of the queue, and of its partitions, has the right type, or does not exist."""
    parts = _parts_of(client, keys)
    wrong = [one for part in parts for one in _wrong_types(client, part)]
    whole = keys.prefix if len(parts) == 1 else f"the {len(parts)} partitions of {keys.prefix}"
    yield from wrong or [ok("keys", f"the keys of {whole} have the right types")]


def _wrong_types(client: Any, keys: QueueKeys) -> Iterator[CheckResult]:
    node = node_of(client, keys.pending)
    for word, key in _single_keys(keys):
        wanted = next(kind.type for kind in KEY_MAP if kind.word == word).partition(",")[0].lower()
        found = text_of(node.type(key))
        if found not in ("none", wanted):
            yield problem(
                "keys",
                f"{key} is a {found} and should be a {wanted}",
                "find out who wrote it, then rename or delete that key, or choose another name for the queue",
            )


def _parts_of(client: Any, keys: QueueKeys) -> list[QueueKeys]:
    """The keys of each partition of a queue; those of a queue without partitions are its own."""
    with contextlib.suppress(ResponseError):  # `meta` is none of ours, which is found below
        (stored,) = node_of(client, keys.counted).hmget(keys.counted, "partitions")
        count = int(stored) if stored is not None and stored.isdigit() else 1
        if 1 < count <= MOST_PARTITIONS:
            return [partition_keys(keys, number, count) for number in range(count)]
    return [keys]


@report_refusals("partitions")
def check_shared_state(client: Any, keys: QueueKeys) -> Iterator[CheckResult]:
    """Check whether all partitions agree on what belongs to the whole queue: their number, pauses, journal, weights."""
    parts = _parts_of(client, keys)
    counts = {number: _count_of(client, part) for number, part in enumerate(parts)}
    if len(parts) == 1:  # the first one may have lost its number, or may have an older one
        counts[1] = _count_of(client, partition_keys(keys, 1, 2))
        if counts[1] is None:
            return
    largest = max(count or 0 for count in counts.values())
    findings = [
        problem(
            "partitions",
            f"{_named(keys, number)} says that the queue has {count or 'no'} partitions, and another says {largest}",
            f"run rmq partitions {keys.prefix} --grow {largest}; after a failover to older state, too",
        )
        for number, count in counts.items()
        if count != largest and (count is not None or number == 0)
    ]
    shared = {number: _shared_state(client, part) for number, part in enumerate(parts) if counts[number] is not None}
    first = shared.get(0, {})
    for number, own in shared.items():
        findings += _disagreements(keys, number, own, first)
    yield from findings or [ok("partitions", f"the {len(parts)} partitions of {keys.prefix} agree")]


def _count_of(client: Any, keys: QueueKeys) -> int | None:
    (stored,) = node_of(client, keys.counted).hmget(keys.counted, "partitions")
    return int(stored) if stored is not None and stored.isdigit() else None


def _named(keys: QueueKeys, number: int) -> str:
    return f"partition {number} of {keys.prefix}"


def _shared_state(client: Any, keys: QueueKeys) -> dict[str, Any]:
    """Return the state of the whole queue that a partition has, by the names that people use."""
    node = node_of(client, keys.meta)
    found: dict[str, Any] = {"paused": set(), "journal": [], "version": None, "weights": {}}
    for raw, value in node.hscan_iter(keys.meta, count=MAX_MESSAGES):
        field = text_of(raw)
        if field == "paused" or field.startswith("paused:"):
            found["paused"].add(field)
        elif field in ("journal", "journal_soft", "journal_hard"):
            found["journal"] = sorted([*found["journal"], (field, text_of(value))])
        elif field == "version":
            found["version"] = text_of(value)
    found["weights"] = {
        text_of(name): text_of(value) for name, value in node.hscan_iter(keys.weights, count=MAX_MESSAGES)
    }
    return found


def _disagreements(keys: QueueKeys, number: int, own: dict[str, Any], first: dict[str, Any]) -> Iterator[CheckResult]:
    """Return the state that differs from that of the first partition. An unused partition gets it when it is used."""
    who, other = _named(keys, number), _named(keys, 0)
    if own["version"] is None or first["version"] is None:
        return
    if own["version"] != first["version"]:
        yield problem(
            "partitions",
            f"{who} has version {own['version']} of the stored state, and {other} has {first['version']}",
            "use releases of one version, and upgrade all clients",
        )
    for field in sorted(own["paused"] ^ first["paused"])[:_SHOWN]:
        tenant = field.partition(":")[2]
        whose, option = (f"the tenant {tenant!r} is paused", f" --tenant {tenant}") if tenant else ("it is paused", "")
        here, there = (who, other) if field in own["paused"] else (other, who)
        yield problem(
            "partitions",
            f"{whose} in {here} and not in {there}",
            f"run rmq pause {keys.prefix}{option}, or rmq resume {keys.prefix}{option}",
        )
    if own["journal"] != first["journal"]:
        yield problem(
            "partitions",
            f"{who} and {other} have other rules for the journal: {_rules(own)}, and {_rules(first)}",
            "publish to each partition once with an object that has the journal options of the queue",
        )
    if own["weights"] != first["weights"]:
        yield advice(
            "partitions",
            f"{who} and {other} have other tenant weights",
            "use all partitions with the same tenant_weights",
        )


def _rules(state: dict[str, Any]) -> str:
    return ", ".join(f"{field} {value}" for field, value in state["journal"]) or "no journal"


def _single_keys(keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """The keys whose name does not contain a tenant or a caller."""
    words = [kind.word for kind in KEY_MAP if "<" not in kind.word]
    for word in words:
        attribute = {"dlq": "dead_letter"}.get(word, word)
        yield word, getattr(keys, attribute)
    for word in ("completed", "failed", "dlq"):
        yield "records::<list>", keys.records(getattr(keys, "dead_letter" if word == "dlq" else word))


@report_refusals("hash tag")
def check_other_spelling(client: Any, name: str, separator: str, used: QueueKeys) -> Iterator[CheckResult]:
    """Look for messages under the same name with or without braces, as a move to a cluster leaves them."""
    with contextlib.suppress(ConfigurationError):
        tagged = QueueKeys.of(name, separator=separator, hash_tag=True)
        plain = QueueKeys.of(name, separator=separator)
        other = plain if used.prefix == tagged.prefix else tagged
        if other.prefix == used.prefix:
            return
        left = [key for key in (other.pending, other.processing) if client.exists(key)]
        if left:
            yield problem(
                "hash tag",
                f"there are messages in {' and '.join(left)}, which no consumer of {used.pending} sees",
                f"consume them with a queue named {other.prefix} (--no-hash-tag or --hash-tag), or rename the keys",
            )


def send_test_message(client: Any, name: str | None, separator: str, hash_tag: bool | None) -> Iterator[CheckResult]:
    """Publish, claim and acknowledge a message in a queue of our own."""
    whole = TEST_QUEUE if name is None else f"{name}{separator}{TEST_QUEUE}"
    begun = time.monotonic()
    try:
        queue = RedisMessageQueue(
            whole,
            client=client,
            key_separator=separator,
            hash_tag=hash_tag,
            deduplication=True,
            get_deduplication_key=str,
            message_deduplication_log_ttl_seconds=1,
            enable_completed_queue=True,
            message_wait_interval_seconds=0.05,
            retry_budget_seconds=_RETRY_BUDGET_SECONDS,
        )
        try:
            _use(queue, client)
        finally:
            _clear(queue, client)
    except (RedisError, RedisMessageQueueError) as error:
        yield _failure(error, whole)
    else:
        yield ok("scripts", f"a test message went through {whole} in {(time.monotonic() - begun) * 1000:.0f} ms")


def _use(queue: RedisMessageQueue, client: Any) -> None:
    """Send the commands that the library sends directly, and run the scripts that use the others."""
    node_of(client, queue.key.wakeup).blpop([queue.key.wakeup], timeout=0.01)
    queue.publish(_NOW, tenant=TEST_QUEUE)
    queue.publish_many([_LATER], delay_seconds=60)
    with queue.process_message():
        pass
    queue.stats(oldest=False)
    queue.peek(1)


def _clear(queue: RedisMessageQueue, client: Any) -> None:
    """Delete the keys of the test queue; the cached replies to the last calls expire."""
    key = queue.key
    own = (key.tenant_pending(TEST_QUEUE), key.deduplication(_NOW, TEST_QUEUE), key.deduplication(_LATER))
    node_of(client, key.pending).unlink(*own, *(one for _, one in _single_keys(key)))
    with contextlib.suppress(NoPermissionError):  # a user who may not change the registry is not in it
        client.srem(REGISTRY_KEY, key.registry_entry)


def _failure(error: Exception, name: str) -> CheckResult:
    said = " ".join(str(error).split())
    if isinstance(error, NoPermissionError) or any(word in said for word in _FORBIDDEN):
        grant = grant_for(error).replace("<queue>::*", f"{name.partition(TEST_QUEUE)[0] or 'NAME::'}*")
        return problem("scripts", f"this user lacks permissions for a queue: {said}", grant)
    return problem("scripts", f"no message could go through {name}: {said}", "fix what the server reports")
