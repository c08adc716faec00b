"""rmq doctor: checks whether a server is fit for queues, and says what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from redis_message_queue.cli.common_options import HashTag, KeySeparator, ServerChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output, to_dict


class RoleName(StrEnum):
    """A role of `permissions.ROLES`; Typer takes an Enum in a list, and no Literal."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    JOURNAL = "journal"


def doctor(
    server: ServerChoice,
    output: Output,
    queues: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="Check these queues too.")] = None,
    key_separator: KeySeparator = "::",
    hash_tag: HashTag = None,
    roles: Annotated[
        list[RoleName] | None,
        typer.Option(
            "--role",
            help="Check the permissions for this role only. Can be repeated.",
            show_default="producer and consumer, and the others as advice",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Check the permissions of this user; you must be an administrator (Redis 7.0 or newer).",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Do not send a test message.")] = False,
) -> ExitStatus | None:
    """Check whether a server is fit for queues, and say what to change.

    Checks the version, persistence, eviction, memory, replicas, connections, the clock, latency and cluster state, and
    whether the user may run every command that the scripts use. Then it sends a test message through a queue of its
    own (with --role, only if you name both producer and consumer). For each QUEUE that you name, it checks whether its
    keys have the right types, whether its partitions agree on their number, pauses, journal and weights, and whether
    messages are stored under another spelling of the name.

    A finding is `ok`, `advice` (it works, and could be safer) or `problem` (messages can be lost or doubled, or the
    queue does not work). The exit status is 1 if there is a problem.
    """
    from redis_message_queue.cli.doctor.check_result import CheckLevel

    with server.client() as client:
        examination = _Examination(client, server, queues or [], key_separator, hash_tag, roles or [], user)
        found = list(examination.run(test_message=not read_only))
    columns = ["level", "check", "found", "change"]
    several = len({one["server"] for one in found}) > 1
    output.table(found, columns=["server", *columns] if several else columns, title=server.shown_url)
    levels = [one["level"] for one in found]
    output.say(f"problems: {levels.count(CheckLevel.PROBLEM)}, advice: {levels.count(CheckLevel.ADVICE)}")
    return ExitStatus.FAILED if CheckLevel.PROBLEM in levels else None


@dataclass(frozen=True, slots=True)
class _Examination:
    """All checks of one server, or of the primaries of a cluster, and of some queues."""

    client: Any
    server: ServerChoice
    queues: Sequence[str]
    separator: str
    hash_tag: bool | None
    roles: Sequence[str]
    user: str | None

    def run(self, *, test_message: bool) -> Iterator[dict[str, Any]]:
        """Yield each finding, with the server that it is about."""
        from redis_message_queue.cli.doctor import server_checks

        for name, node in server_checks.nodes_of(self.client) or [(self.server.shown_url, self.client)]:
            for finding in server_checks.check_server(node):
                yield {"server": name} | to_dict(finding)
        for findings in (
            server_checks.check_cluster(self.client),
            server_checks.check_timeouts(self.client),
            self._queue_findings(test_message=test_message),
        ):
            for finding in findings:
                yield {"server": self.server.shown_url} | to_dict(finding)

    def _queue_findings(self, *, test_message: bool) -> Iterator[Any]:
        from redis_message_queue.cli.doctor import permission_checks, queue_checks, server_checks
        from redis_message_queue.stored.keys import QueueKeys

        hash_tag = bool(server_checks.nodes_of(self.client)) if self.hash_tag is None else self.hash_tag
        keys = {name: queue_checks.keys_of(name, self.separator, hash_tag=hash_tag) for name in self.queues}
        test_keys = queue_checks.keys_of(queue_checks.TEST_QUEUE, self.separator, hash_tag=hash_tag)
        for one in keys.values() or [test_keys]:
            if isinstance(one, QueueKeys):
                yield from permission_checks.check_permissions(self.client, one, self.roles, self.user)
        for name, one in keys.items():
            if isinstance(one, QueueKeys):
                yield from queue_checks.check_key_types(self.client, one)
                yield from queue_checks.check_shared_state(self.client, one)
                yield from queue_checks.check_other_spelling(self.client, name, self.separator, one)
            else:
                yield one
        # The message goes both in and out, as the user of the URL.
        both_roles = not self.roles or {"producer", "consumer"}.issubset(self.roles)
        if test_message and self.user is None and both_roles:
            first = self.queues[0] if self.queues else None
            yield from queue_checks.send_test_message(self.client, first, self.separator, self.hash_tag)
