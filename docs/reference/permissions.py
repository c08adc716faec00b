"""The ACL rules in docs/how-to/restrict-access.md and in the recipe, from the commands that each role needs."""

from __future__ import annotations

import re
from pathlib import Path

from redis_message_queue.stored.keys import REGISTRY_KEY
from redis_message_queue.stored.permissions import ROLES

HOW_TO = Path(__file__).parents[1] / "how-to" / "restrict-access.md"
RECIPE = Path(__file__).parents[1] / "how-to" / "recipes" / "acl.md"
# The users of the recipe, with their roles, and how they use the list of all queues.
USERS = {"site": ("producer", "+sadd"), "worker": ("consumer", "+sadd"), "operator": ("operator", "+sscan +exists")}
_USER = re.compile(r"^(?P<head>user (?P<name>\w+) on >\S+) (?!~\*).*$", re.MULTILINE)
_RULE = re.compile(r"^ACL SETUSER (\w+)\b.*$", re.MULTILINE)


def restrict_access_page() -> str:
    """The page with the current rule of each role; its other text is written by hand."""
    return _RULE.sub(lambda found: rule(found[1]), HOW_TO.read_text(encoding="utf-8"))


def acl_recipe_page() -> str:
    """The page with a current ACL file."""
    text = RECIPE.read_text(encoding="utf-8")
    return _USER.sub(lambda found: f"{found['head']} {_rules(*USERS[found['name']])}", text)


def _rules(role: str, in_registry: str) -> str:
    return f"{ROLES[role].rules('orders')} ~{REGISTRY_KEY} {in_registry}"


def rule(role: str) -> str:
    return f"ACL SETUSER {role} on >secret {ROLES[role].rules('orders')}"
