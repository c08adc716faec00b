"""Checks whether a user may run every command that a role needs, and access the keys of a queue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from redis_message_queue.cli.clients import node_of, text_of
from redis_message_queue.cli.doctor.check_result import CheckResult, advice, ok, problem, report_refusals
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.stored.permissions import ROLES, Role, example

# What most programs need; the other roles are for people and pipelines, and perhaps for another user.
PROGRAM_ROLES = ("producer", "consumer")

_COMMON = "HMGET"  # every role has it
_SINGLE = (
    *("pending", "processing", "leases", "deliveries", "delayed", "tenant_ring"),
    *("wakeup", "dead_letter", "journal", "meta"),
)
# Redis 7.0 and Valkey: checks without running anything.
_ASK_IN_SCRIPT = """
local answers = {}
for place, words in ipairs(cjson.decode(ARGV[1])) do
  answers[place] = redis.acl_check_cmd(unpack(words)) and 1 or 0
end
return answers
"""


Questions = dict[str, tuple[str, ...]]
"""Commands to check, each by a name: the command itself, or the key that it is about."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The commands and keys that are not permitted."""

    commands: frozenset[str]
    keys: tuple[str, ...] = ()


@report_refusals("permissions")
def check_permissions(client: Any, keys: QueueKeys, roles: Sequence[str], user: str | None) -> Iterator[CheckResult]:
    """Yield a finding for each role. A missing permission is a problem for ``roles``, or else for `PROGRAM_ROLES`."""
    chosen = [ROLES[name] for name in roles or ROLES]
    denied = _denied(node_of(client, keys.pending), _questions(chosen, keys), user)
    if denied is None:
        yield advice(
            "permissions",
            "could not be checked: this user may not run ACL DRYRUN, MULTI or a script with redis.acl_check_cmd",
            "run rmq doctor --user NAME as an administrator (Redis 7.0 or newer), or grant +multi +discard",
        )
        return
    for role in chosen:
        yield _finding(role, denied, keys, must=role.name in (roles or PROGRAM_ROLES))


def _questions(roles: Sequence[Role], keys: QueueKeys) -> Questions:
    commands = sorted({command for role in roles for command in role.commands})
    several = (keys.reply("x"), keys.tenant_pending("x"), keys.deduplication("x"))
    some = (*(getattr(keys, name) for name in _SINGLE), *several)
    asked = {command: example(command, keys.pending) for command in commands}
    return asked | {key: example(_COMMON, key) for key in some}


def _finding(role: Role, denied: Denied, keys: QueueKeys, *, must: bool) -> CheckResult:
    complain = problem if must else advice
    if denied.keys:
        return complain(
            "permissions",
            f"{role.name}: the user may not access {', '.join(denied.keys)}",
            f"ACL SETUSER <user> ~{keys.prefix}{keys.separator}*",
        )
    missing = [command for command in role.commands if command in denied.commands]
    if not missing:
        return ok("permissions", f"{role.name}: all {len(role.commands)} commands are permitted")
    return complain(
        "permissions",
        f"{role.name}: not permitted: {', '.join(missing)}; a script that needs one of them stops half-way",
        f"ACL SETUSER <user> {' '.join(f'+{command.lower()}' for command in missing)}",
    )


def _denied(node: Any, questions: Questions, user: str | None) -> Denied | None:
    """Use the first way to ask that this server and this user support."""
    if user is not None:
        return _dry_run(node, questions, user)
    for ask in (_by_dry_run, _by_transaction, _by_script):
        denied = ask(node, questions)
        if denied is not None:
            return denied
    return None


def _by_dry_run(node: Any, questions: Questions) -> Denied | None:
    try:
        return _dry_run(node, questions, text_of(node.execute_command("ACL WHOAMI")))
    except ResponseError:  # not permitted, or a server before 7.0
        return None


def _dry_run(node: Any, questions: Questions, user: str) -> Denied:
    answers = {name: text_of(node.execute_command("ACL DRYRUN", user, *words)) for name, words in questions.items()}
    return _sorted({name: said for name, said in answers.items() if said != "OK"}, questions)


def _by_transaction(node: Any, questions: Questions) -> Denied | None:
    """Queue the commands in a transaction and discard it: the server checks each when it is queued."""
    pool, refused, finished = node.connection_pool, {}, False
    connection = pool.get_connection()
    try:
        connection.send_command("MULTI")
        connection.read_response()
        for name, words in questions.items():
            if name in ("MULTI", "EXEC"):
                continue  # they cannot be queued
            connection.send_command(*words)
            try:
                connection.read_response()
            except NoPermissionError as error:
                refused[name] = str(error)
            except ResponseError:
                pass  # permitted, and refused for another reason
        connection.send_command("DISCARD")
        connection.read_response()
        finished = True
        return _sorted(refused, questions)
    except NoPermissionError:
        return _sorted(refused, questions) if refused else None
    finally:
        if not finished:
            connection.disconnect()  # this discards the transaction too
        pool.release(connection)


def _by_script(node: Any, questions: Questions) -> Denied | None:
    asked = json.dumps(list(questions.values()))
    try:
        answers = node.execute_command("EVAL", _ASK_IN_SCRIPT, 0, asked)
    except ResponseError:
        return None
    refused = {name: "" for name, answer in zip(questions, answers, strict=True) if not answer}
    # It refuses a command and a key alike: if the common command is refused, the key is not the reason.
    return _sorted(refused, questions, keys_count=_COMMON not in refused)


def _sorted(refused: dict[str, str], questions: Questions, *, keys_count: bool = True) -> Denied:
    """Separate commands from keys; the error text says which of the two was refused."""
    by_key = {name for name, said in refused.items() if " key" in said or (not said and keys_count)}
    keys = tuple(name for name in refused if name != questions[name][0] and name in by_key)
    commands = {name for name in refused if name == questions[name][0] and not (name in by_key and refused[name])}
    return Denied(frozenset(commands), keys)
