"""What can be wrong with one queue: its name on a cluster, its keys, and the rights to use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.doctor.finding import Finding, ok, problem
from redis_message_queue.cli.node import node_of, text_of
from redis_message_queue.errors import ConfigurationError, RedisMessageQueueError
from redis_message_queue.keys import KEY_MAP, QueueKeys, refuse_reserved_words

TRIAL = "rmq-doctor"
# How a script says that its user may not do something, on 7 and on 6.2.
_FORBIDDEN = ("NOPERM", "ACL failure", "can't run this command")
_NOW, _LATER = "now", "later"
_TRIAL_PATIENCE_SECONDS = 3.0


def keys_of(name: str, separator: str, *, hash_tag: bool) -> QueueKeys | Finding:
    """The keys of a queue, or why it can have none."""
    check = "name"
    try:
        refuse_reserved_words(name, separator)
        check = "hash tag"
        return QueueKeys.of(name, separator=separator, hash_tag=hash_tag)
    except ConfigurationError as error:
        return problem(check, str(error), "rename the queue")


def key_types(client: Any, keys: QueueKeys) -> Iterator[Finding]:
    """Whether each key of the queue is what it should be, or is not there."""
    node, wrong = node_of(client, keys.pending), 0
    for word, key in _single_keys(keys):
        wanted = next(kind.type for kind in KEY_MAP if kind.word == word).partition(",")[0].lower()
        found = text_of(node.type(key))
        if found not in ("none", wanted):
            wrong += 1
            yield problem(
                "keys",
                f"{key} is a {found} and should be a {wanted}",
                "find out who wrote it, then rename or remove that key, or choose another name for the queue",
            )
    if not wrong:
        yield ok("keys", f"those of {keys.prefix} have the right types")


def _single_keys(keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """Those whose name is known without a tenant or a caller."""
    words = [kind.word for kind in KEY_MAP if "<" not in kind.word]
    for word in words:
        attribute = {"dlq": "dead_letter"}.get(word, word)
        yield word, getattr(keys, attribute)
    for word in ("completed", "failed", "dlq"):
        yield "records::<list>", keys.records(getattr(keys, "dead_letter" if word == "dlq" else word))


def other_spelling(client: Any, name: str, separator: str, used: QueueKeys) -> Iterator[Finding]:
    """Messages under the same name with or without braces are out of sight, as after a move to a cluster."""
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
                f"there are messages under {' and '.join(left)}, which no consumer of {used.pending} sees",
                f"consume them with a queue named {other.prefix} (--no-hash-tag or --hash-tag), or rename the keys",
            )


def trial(client: Any, name: str | None, separator: str, hash_tag: bool | None) -> Iterator[Finding]:
    """Publish a message, wait at the bell, claim and acknowledge: whoever can do this can do everything."""
    whole = TRIAL if name is None else f"{name}{separator}{TRIAL}"
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
            retry_budget_seconds=_TRIAL_PATIENCE_SECONDS,
        )
        try:
            _go_through(queue, client)
        finally:
            _clear(queue, client)
    except (RedisError, RedisMessageQueueError) as error:
        yield _told(error, whole)
    else:
        yield ok("scripts", f"a message went through {whole} in {(time.monotonic() - begun) * 1000:.0f} ms")


def _go_through(queue: RedisMessageQueue, client: Any) -> None:
    """All commands that the library sends by itself, and the scripts that use the rest."""
    node_of(client, queue.key.bell).blpop([queue.key.bell], timeout=0.01)
    queue.publish(_NOW, tenant=TRIAL)
    queue.publish_many([_LATER], delay_seconds=60)
    with queue.process_message():
        pass
    queue.stats(oldest=False)
    queue.peek(1)


def _clear(queue: RedisMessageQueue, client: Any) -> None:
    """The answers to the last calls expire by themselves."""
    key, node = queue.key, node_of(client, queue.key.pending)
    for one in (
        *(key.pending, key.processing, key.leases, key.deliveries, key.delayed, key.later, key.tenants, key.size),
        *(key.completed, key.records(key.completed), key.bell, key.watch, key.line(TRIAL)),
        *(key.deduplication(_NOW, TRIAL), key.deduplication(_LATER), key.meta),
    ):
        node.unlink(one)


def _told(error: Exception, name: str) -> Finding:
    said = " ".join(str(error).split())
    if isinstance(error, NoPermissionError) or any(word in said for word in _FORBIDDEN):
        return problem(
            "scripts",
            f"this user may not use a queue: {said}",
            f"ACL SETUSER <user> ~{name.partition(TRIAL)[0] or 'NAME::'}* +@all -@dangerous +info, or what of it your "
            "rules allow: EVALSHA, EVAL, BLPOP and what the scripts call are needed",
        )
    return problem("scripts", f"no message could go through {name}: {said}", "mend what the server complains about")
