"""The rules for users of Redis in docs/how-to/restrict-access.md, from the commands that the scripts call."""

from __future__ import annotations

import re
from pathlib import Path

from redis_message_queue.permissions import ROLES

HOW_TO = Path(__file__).parents[1] / "how-to" / "restrict-access.md"
_RULE = re.compile(r"^ACL SETUSER (\w+)\b.*$", re.MULTILINE)


def restrict_access_page() -> str:
    """The page as it is, with the present list of each role."""
    return _RULE.sub(lambda found: rule(found[1]), HOW_TO.read_text(encoding="utf-8"))


def rule(role: str) -> str:
    return f"ACL SETUSER {role} on >secret {ROLES[role].rules('orders')}"
