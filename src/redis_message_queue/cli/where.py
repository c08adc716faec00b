"""`--where`: the condition by which commands choose messages, and the search for those that it names."""

from collections.abc import Callable
from typing import Annotated

import typer

from redis_message_queue.cli.output import say
from redis_message_queue.messages import MessageRecord

Where = Annotated[
    str | None,
    typer.Option("--where", metavar="CONDITION", help="Only those for which this holds.", show_default=False),
]
FARTHEST = 10_000  # messages that a search looks at: each look is one question to the server
_FIRST_LOOK = 200
_STEP = 4


def search(
    look: Callable[[int], list[MessageRecord]], holds: Callable[[MessageRecord], bool] | None, limit: int
) -> list[MessageRecord]:
    """The first ones for which a condition holds; ``look`` gives the first so many of all."""
    if holds is None:
        return look(limit)
    depth = min(max(limit, _FIRST_LOOK), FARTHEST)
    while True:
        seen = look(depth)
        found = [record for record in seen if holds(record)][:limit]
        if len(found) == limit or len(seen) < depth:
            return found
        if depth == FARTHEST:
            say(f"looked at the first {FARTHEST:,} only; behind them there may be more")
            return found
        depth = min(depth * _STEP, FARTHEST)
