"""One visit: all checks of every server, then those of the queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from redis_message_queue import wire
from redis_message_queue.cli.as_json import as_facts
from redis_message_queue.cli.choices import ServerChoice
from redis_message_queue.cli.doctor import permission_checks, queue_checks, server_checks
from redis_message_queue.cli.doctor.clock import clock, latency
from redis_message_queue.cli.doctor.finding import Finding, advice, ok, problem
from redis_message_queue.keys import QueueKeys

_SHORT_TIMEOUT_SECONDS = 1.0
_SLOTS = 16_384


class Examination:
    """Of one server, or of the primaries of a cluster."""

    def __init__(
        self, client: Any, choice: ServerChoice, queues: Sequence[str], separator: str, hash_tag: bool | None
    ) -> None:
        self._client, self._choice, self._queues = client, choice, queues
        self._separator, self._hash_tag = separator, hash_tag
        self._is_cluster = isinstance(client, redis.RedisCluster)

    def run(self, *, trial: bool, roles: Sequence[str] = (), user: str | None = None) -> Iterator[dict[str, Any]]:
        """Every finding, with the server that it is about."""
        for name, node in self._nodes():
            for finding in self._server(node):
                yield {"server": name} | as_facts(finding)
        cluster = _as_far_as_it_goes("cluster", self._cluster())
        permissions = _as_far_as_it_goes("permissions", self._permissions(roles, user))
        # A trial needs both, and shows what the user of the URL may do.
        trial = trial and user is None and (not roles or {"producer", "consumer"}.issubset(roles))
        for finding in (*cluster, *self._timeouts(), *permissions, *self._all_queues(trial)):
            yield {"server": self._choice.shown_url} | as_facts(finding)

    def _nodes(self) -> Iterator[tuple[str, Any]]:
        if not self._is_cluster:
            yield self._choice.shown_url, self._client
            return
        for node in sorted(self._client.get_primaries(), key=lambda node: str(node.name)):
            yield node.name, self._client.get_redis_connection(node)

    def _server(self, node: Any) -> Iterator[Finding]:
        yield from _as_far_as_it_goes("server", server_checks.everything(node))
        yield from _as_far_as_it_goes("clock", clock(node))
        yield from _as_far_as_it_goes("latency", latency(node))

    def _cluster(self) -> Iterator[Finding]:
        if not self._is_cluster:
            yield ok("cluster", "no cluster: one server has all keys")
            return
        content = True
        for name, node in self._nodes():  # each has its own opinion
            told = node.cluster("INFO")
            state, served = told["cluster_state"], int(told["cluster_slots_ok"])
            if state != "ok" or served < _SLOTS:
                content = False
                yield problem(
                    "cluster",
                    f"in the eyes of {name}: state {state}, {served:,} of {_SLOTS:,} slots served",
                    "CLUSTER NODES shows who is missing; bring it back, or promote its replica",
                )
        if content:
            yield ok("cluster", "all slots are served; a queue's keys share a hash tag, and with it a slot")

    def _timeouts(self) -> Iterator[Finding]:
        """The bell's blocking read ends at 0.8 of a short socket timeout, and begins again."""
        seconds = wire.connection_settings(self._client).get("socket_timeout")
        if seconds is not None and seconds < _SHORT_TIMEOUT_SECONDS:
            yield advice(
                "timeouts",
                f"socket_timeout is {seconds:g} s: an idle consumer asks {1 / (0.8 * seconds):.0f} times a second",
                "set it to 2 s or more: a waiting consumer then asks once a second",
            )
        else:
            yield ok("timeouts", "the socket timeout leaves room for a waiting read")

    def _permissions(self, roles: Sequence[str], user: str | None) -> Iterator[Finding]:
        tag = self._is_cluster if self._hash_tag is None else self._hash_tag
        for name in self._queues or [queue_checks.TRIAL]:
            keys = queue_checks.keys_of(name, self._separator, hash_tag=tag)
            if isinstance(keys, QueueKeys):
                yield from permission_checks.permissions(self._client, keys, roles, user)

    def _all_queues(self, trial: bool) -> Iterator[Finding]:
        tag = self._is_cluster if self._hash_tag is None else self._hash_tag
        for name in self._queues:
            keys = queue_checks.keys_of(name, self._separator, hash_tag=tag)
            if not isinstance(keys, QueueKeys):
                yield keys
                continue
            yield from _as_far_as_it_goes("keys", queue_checks.key_types(self._client, keys))
            yield from _as_far_as_it_goes(
                "hash tag", queue_checks.other_spelling(self._client, name, self._separator, keys)
            )
        if trial:
            first = self._queues[0] if self._queues else None
            yield from queue_checks.trial(self._client, first, self._separator, self._hash_tag)


def _as_far_as_it_goes(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """A refusal is a finding too, and the rest goes on."""
    try:
        yield from findings
    except NoPermissionError as error:
        yield advice(check, f"not permitted to look: {error}", "call the doctor as a user who may: +info +config|get")
    except ResponseError as error:
        yield problem(check, f"the server refuses to answer: {error}", "mend what it complains about")
