"""Whether a user of Redis may run every command that a role needs, and access the keys of the queue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from redis_message_queue.cli.doctor.finding import Finding, advice, ok, problem
from redis_message_queue.cli.node import node_of, text_of
from redis_message_queue.keys import QueueKeys
from redis_message_queue.permissions import ROLES, Role, example

# What a program needs for messages; the others are for people and pipelines, and perhaps for another user.
USUAL = ("producer", "consumer")

_COMMON = "HMGET"  # which every role has
_SINGLE = (
    "pending",
    "processing",
    "leases",
    "deliveries",
    "delayed",
    "tenants",
    "bell",
    "dead_letter",
    "journal",
    "meta",
)
# Redis 7.0 and Valkey: asks without running anything.
_ASK_IN_SCRIPT = """
local answers = {}
for place, words in ipairs(cjson.decode(ARGV[1])) do
  answers[place] = redis.acl_check_cmd(unpack(words)) and 1 or 0
end
return answers
"""


Questions = dict[str, tuple[str, ...]]
"""Commands to be asked about, by a name for each: the command itself, or the key that it is about."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What a user may not do of what it was asked about."""

    commands: frozenset[str]
    keys: tuple[str, ...] = ()


def permissions(client: Any, keys: QueueKeys, roles: Sequence[str], user: str | None) -> Iterator[Finding]:
    """One finding for each role. Named roles and the usual ones are a problem if anything is missing."""
    chosen = [ROLES[name] for name in roles or ROLES]
    rights = _rights(node_of(client, keys.pending), _questions(chosen, keys), user)
    if rights is None:
        yield advice(
            "permissions",
            "could not be checked: this user may run none of ACL DRYRUN, MULTI and a script with redis.acl_check_cmd",
            "call the doctor as an administrator with --user NAME (Redis 7.0 or newer), or grant +multi +discard",
        )
        return
    for role in chosen:
        yield _judge(role, rights, keys, must=role.name in (roles or USUAL))


def _questions(roles: Sequence[Role], keys: QueueKeys) -> Questions:
    commands = sorted({command for role in roles for command in role.commands})
    some = (*(getattr(keys, name) for name in _SINGLE), keys.reply("x"), keys.line("x"), keys.deduplication("x"))
    asked = {command: example(command, keys.pending) for command in commands}
    return asked | {key: example(_COMMON, key) for key in some}


def _judge(role: Role, rights: Rights, keys: QueueKeys, *, must: bool) -> Finding:
    complain = problem if must else advice
    if rights.keys:
        return complain(
            "permissions",
            f"{role.name}: the user may not access {', '.join(rights.keys)}",
            f"ACL SETUSER <user> ~{keys.prefix}{keys.separator}*",
        )
    missing = [command for command in role.commands if command in rights.commands]
    if not missing:
        return ok("permissions", f"{role.name}: all {len(role.commands)} commands are permitted")
    return complain(
        "permissions",
        f"{role.name}: not permitted: {', '.join(missing)}; a script that meets one stops half-way",
        f"ACL SETUSER <user> {' '.join(f'+{command.lower()}' for command in missing)}",
    )


def _rights(node: Any, questions: Questions, user: str | None) -> Rights | None:
    """By the first way that this server and this user have."""
    if user is not None:
        return _dry_run(node, questions, user)
    for ask in (_own_dry_run, _queue_up, _ask_in_script):
        rights = ask(node, questions)
        if rights is not None:
            return rights
    return None


def _own_dry_run(node: Any, questions: Questions) -> Rights | None:
    try:
        return _dry_run(node, questions, text_of(node.execute_command("ACL WHOAMI")))
    except ResponseError:  # not permitted, or a server before 7.0
        return None


def _dry_run(node: Any, questions: Questions, user: str) -> Rights:
    answers = {name: text_of(node.execute_command("ACL DRYRUN", user, *words)) for name, words in questions.items()}
    return _sorted({name: said for name, said in answers.items() if said != "OK"}, questions)


def _queue_up(node: Any, questions: Questions) -> Rights | None:
    """In a transaction that is given up: the server checks each command when it is queued."""
    pool, refused, finished = node.connection_pool, {}, False
    connection = pool.get_connection()
    try:
        connection.send_command("MULTI")
        connection.read_response()
        for name, words in questions.items():
            if name in ("MULTI", "EXEC"):
                continue  # permitted, or tried by whoever archives
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
            connection.disconnect()  # which gives the transaction up as well
        pool.release(connection)


def _ask_in_script(node: Any, questions: Questions) -> Rights | None:
    asked = json.dumps(list(questions.values()))
    try:
        answers = node.execute_command("EVAL", _ASK_IN_SCRIPT, 0, asked)
    except ResponseError:
        return None
    refused = {name: "" for name, answer in zip(questions, answers, strict=True) if not answer}
    # It says no to a command and to a key alike: if the common command is among them, a key cannot be blamed.
    return _sorted(refused, questions, keys_count=_COMMON not in refused)


def _sorted(refused: dict[str, str], questions: Questions, *, keys_count: bool = True) -> Rights:
    """Names of commands from names of keys; what is said tells which of the two was refused."""
    by_key = {name for name, said in refused.items() if " key" in said or (not said and keys_count)}
    keys = tuple(name for name in refused if name != questions[name][0] and name in by_key)
    commands = {name for name in refused if name == questions[name][0] and not (name in by_key and refused[name])}
    return Rights(frozenset(commands), keys)
