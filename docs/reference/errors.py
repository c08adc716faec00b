"""errors.md: the tree of exceptions, from `values/errors.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

from docs.reference.markdown import doc, page, prose, table
from redis_message_queue import RedisMessageQueueError
from redis_message_queue.redis_py.server_errors import DECISIONS, TRANSIENT_PHRASES
from redis_message_queue.values import errors


def errors_page() -> str:
    return page(
        "Errors",
        "`values/errors.py`",
        prose(f"""
            Every exception that the library raises is a `{RedisMessageQueueError.__name__}`. If a built-in or redis-py
            exception means the same, the error is also a subclass of that one, so you can catch either. Exceptions from
            your handler reach you unchanged.
        """),
        "```text\n" + "\n".join(_tree(RedisMessageQueueError)) + "\n```",
        "## What each error means",
        *(f"### {one.__name__}\n\n{doc(one)}" for one in error_classes()),
        "## Which Redis errors are retried",
        prose("""
            If Redis replies with a transient error, the library waits and repeats the call until
            `retry_budget_seconds` have passed, just as it does after a lost connection. This applies to heartbeats too.
            Every other error is raised at once. The first word of the reply decides; a reply that is not in this table
            is raised.
        """),
        table(
            ("reply", "retried", "why"),
            [(f"`{word}`", "yes" if one.transient else "no", one.reason) for word, one in DECISIONS.items()],
        ),
        prose("A reply that contains one of these texts is retried as well, whatever its first word is."),
        table(("text", "why"), [(f"`{phrase}`", reason) for phrase, reason in TRANSIENT_PHRASES.items()]),
    )


def error_classes() -> list[type[Exception]]:
    """All error classes, in the order of `values/errors.py`."""
    found: Iterable[type[Exception]] = filter(inspect.isclass, vars(errors).values())
    return [one for one in found if one.__module__ == errors.__name__]


def _tree(root: type, indent: str = "") -> Iterator[str]:
    others = [_name_of(base) for base in root.__bases__ if not issubclass(base, RedisMessageQueueError)]
    yield f"{indent}{root.__name__}" + (f" ({', '.join(others)})" if others else "")
    for one in error_classes():
        if root in one.__bases__:
            yield from _tree(one, indent + "    ")


def _name_of(one: type) -> str:
    return one.__name__ if one.__module__ == "builtins" else f"redis.{one.__name__}"
