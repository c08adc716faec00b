"""Checks one queue: its name, the types of its keys, and whether a message can go through."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.connection import node_of, text_of
from redis_message_queue.cli.doctor.finding import Finding, ok, problem, report_refusals
from redis_message_queue.errors import ConfigurationError, RedisMessageQueueError
from redis_message_queue.keys import KEY_MAP, REGISTRY_KEY, QueueKeys, partition_keys, refuse_reserved_words
from redis_message_queue.options import MOST_PARTITIONS

TEST_QUEUE = "rmq-doctor"
# How a script reports a missing permission, on 7 and on 6.2.
_FORBIDDEN = ("NOPERM", "ACL failure", "can't run this command")
_NOW, _LATER = "now", "later"
_RETRY_BUDGET_SECONDS = 3.0


def keys_of(name: str, separator: str, *, hash_tag: bool) -> QueueKeys | Finding:
    """Return the keys of a queue, or why the name cannot be used."""
    check = "name"
    try:
        refuse_reserved_words(name, separator)
        check = "hash tag"
        return QueueKeys.of(name, separator=separator, hash_tag=hash_tag)
    except ConfigurationError as error:
        return problem(check, str(error), "rename the queue")


@report_refusals("keys")
def check_key_types(client: Any, keys: QueueKeys) -> Iterator[Finding]:
    """Check whether each key of the queue, and of its partitions, has the right type, or does not exist."""
    parts = _parts_of(client, keys)
    wrong = [one for part in parts for one in _wrong_types(client, part)]
    whole = keys.prefix if len(parts) == 1 else f"the {len(parts)} partitions of {keys.prefix}"
    yield from wrong or [ok("keys", f"the keys of {whole} have the right types")]


def _wrong_types(client: Any, keys: QueueKeys) -> Iterator[Finding]:
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


def _single_keys(keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """The keys whose name does not contain a tenant or a caller."""
    words = [kind.word for kind in KEY_MAP if "<" not in kind.word]
    for word in words:
        attribute = {"dlq": "dead_letter"}.get(word, word)
        yield word, getattr(keys, attribute)
    for word in ("completed", "failed", "dlq"):
        yield "records::<list>", keys.records(getattr(keys, "dead_letter" if word == "dlq" else word))


@report_refusals("hash tag")
def check_other_spelling(client: Any, name: str, separator: str, used: QueueKeys) -> Iterator[Finding]:
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


def send_test_message(client: Any, name: str | None, separator: str, hash_tag: bool | None) -> Iterator[Finding]:
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


def _failure(error: Exception, name: str) -> Finding:
    said = " ".join(str(error).split())
    if isinstance(error, NoPermissionError) or any(word in said for word in _FORBIDDEN):
        return problem(
            "scripts",
            f"this user lacks permissions for a queue: {said}",
            f"ACL SETUSER <user> ~{name.partition(TEST_QUEUE)[0] or 'NAME::'}* +@all -@dangerous +info, or fewer "
            "commands: EVALSHA, EVAL, BLPOP and those that the scripts call are needed",
        )
    return problem("scripts", f"no message could go through {name}: {said}", "fix what the server reports")
