"""The ACL rules in docs/how-to/restrict-access.md, from the commands that each role needs."""

from __future__ import annotations

import re
from pathlib import Path

from redis_message_queue.permissions import ROLES

HOW_TO = Path(__file__).parents[1] / "how-to" / "restrict-access.md"
_RULE = re.compile(r"^ACL SETUSER (\w+)\b.*$", re.MULTILINE)


def restrict_access_page() -> str:
    """The page with the current rule of each role; its other text is written by hand."""
    return _RULE.sub(lambda found: rule(found[1]), HOW_TO.read_text(encoding="utf-8"))


def rule(role: str) -> str:
    return f"ACL SETUSER {role} on >secret {ROLES[role].rules('orders')}"
