"""errors.md: the tree of exceptions, from `errors.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from docs.reference.markdown import doc, page, prose, table
from redis_message_queue import RedisMessageQueueError, errors
from redis_message_queue.server_errors import DECISIONS, TRANSIENT_PHRASES


def errors_page() -> str:
    return page(
        "Errors",
        "`errors.py`",
        prose(f"""
            Everything that the library raises by itself is a `{RedisMessageQueueError.__name__}`. Where a builtin or
            redis-py exception means the same, the error is one of those too, so that code which catches that one keeps
            working. An exception of your handler comes out as itself.
        """),
        "```text\n" + "\n".join(_tree(RedisMessageQueueError)) + "\n```",
        "## What each of them means",
        *(f"### {one.__name__}\n\n{doc(one)}" for one in error_classes()),
        "## What Redis says, and what is waited for",
        prose("""
            A call that gets a transient error is repeated within `retry_budget_seconds`, as one whose connection broke;
            so is a heartbeat. Any other error is raised at once. What decides is the first word of the reply; one that
            is not in this table is raised.
        """),
        table(
            ("reply", "waited for", "why"),
            [(f"`{word}`", "yes" if one.transient else "no", one.reason) for word, one in DECISIONS.items()],
        ),
        prose("These texts are waited for as well, whatever their first word is."),
        table(("text", "why"), [(f"`{phrase}`", reason) for phrase, reason in TRANSIENT_PHRASES.items()]),
    )


def error_classes() -> list[type[Exception]]:
    """In the order of the file, which goes by what the caller can do."""
    return [one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__]


def _tree(root: type, indent: str = "") -> Iterator[str]:
    others = [_name_of(base) for base in root.__bases__ if not issubclass(base, RedisMessageQueueError)]
    yield f"{indent}{root.__name__}" + (f" ({', '.join(others)})" if others else "")
    for one in error_classes():
        if root in one.__bases__:
            yield from _tree(one, indent + "    ")


def _name_of(one: type) -> str:
    return one.__name__ if one.__module__ == "builtins" else f"redis.{one.__name__}"
