"""Claims of a streaming query: messages leave the queue into numbered groups, and stay there until they are handled."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from redis_message_queue import wire
from redis_message_queue.errors import (
    ConfigurationError,
    ConsumerGroupBusyError,
    ConsumerGroupLostError,
    LuaScriptError,
)
from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.port import Argument, Command, finish
from redis_message_queue.scripts import script
from redis_message_queue.sync.port import BlockingPort

log = logging.getLogger("redis_message_queue")

PART = 10_000  # messages that one script moves at the most: some 20 ms of the server's time
_STEP = 1_000  # messages that one script gives back
_SLICE_SECONDS = 1.0  # the longest sleep at the bell: a token may be lost with its consumer


@dataclass(frozen=True, slots=True)
class Rules:
    """What a queue's consumers are told as options, and a streaming query has to know as well."""

    max_delivery_count: int | None = None
    message_ttl_seconds: float | None = None
    dead_letter_queue: str | None = None
    max_dead_letter_length: int | None = None
    key_separator: str = "::"
    hash_tag: bool = False

    def keys_of(self, queue: str, *, cluster: bool) -> QueueKeys:
        """The keys of a queue with these rules, which share a slot on a cluster."""
        return QueueKeys.of(
            queue,
            separator=self.key_separator,
            dead_letter=self.dead_letter_queue,
            hash_tag=self.hash_tag or cluster,
        )


class Progress(NamedTuple):
    """How far a consumer group has come: each number stands for all before it."""

    epoch: int
    sealed: int
    acked: int
    cleared: int
    released: int
    releasing: int
    part: int


class Groups:
    """The claims of one consumer group of one queue. All that writes needs `take_over` first."""

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        queue: str,
        group: str,
        *,
        lease_seconds: float = 10.0,
        rules: Rules | None = None,
    ) -> None:
        self._client: Any = client
        rules = rules or Rules()
        self.queue, self.group, self.lease_seconds = queue, group, lease_seconds
        self.keys = rules.keys_of(queue, cluster=wire.is_cluster(client))
        check_name(group, self.keys.separator)
        self._port = BlockingPort(self._client)
        self._calls = Calls(self._port, self.keys, GatewayOptions())
        self._holder = os.urandom(12).hex()
        self._after = -1  # the epoch before ours
        self._part = 0
        self.sealed = self.acked = 0
        lines = (self.keys.line(""), self.keys.returned(""))
        ttl_us = int((rules.message_ttl_seconds or 0) * 1_000_000)
        limits = (rules.max_delivery_count or 0, rules.max_dead_letter_length or 0, ttl_us)
        self._gather = self._command("gather", *lines, *limits, group)
        self._release = self._command("release", *lines, group)
        self._acknowledge = self._command("acknowledge", group)
        self._take_over = self._command("take_over", group, self._holder)
        self._seal = self._command("seal")
        self._stats = self._command("stats", lines[0])

    # -- holding the group

    def take_over(self, patience_seconds: float | None = None) -> None:
        """Become the holder, in the next epoch; the lease of another one is waited out.

        One that goes on renewing its lease is given two of ours more: its process may be about to end.
        """
        after, give_up_at = self.progress().epoch, None
        while True:
            taken, epoch, wait_us = self._ask_for_lease(self.lease_seconds, after)
            if taken:
                break
            if epoch == after:
                wait, now = wait_us / 1_000_000, time.monotonic()
                if give_up_at is None:
                    # A second at least: a lease may be shorter than a call takes on a busy machine.
                    usual = wait + max(1.0, 2 * self.lease_seconds)
                    give_up_at = now + (usual if patience_seconds is None else patience_seconds)
                if now >= give_up_at:
                    raise self._busy()
                time.sleep(max(0.01, min(wait, give_up_at - now)))
            after = epoch
        self._after = after
        self._refresh()

    def renew(self) -> None:
        """Remain the holder, or learn that another one is."""
        taken, epoch, _ = self._ask_for_lease(self.lease_seconds, self._after)
        if not taken:
            raise self._lost(f"it is at epoch {epoch}, this query at {self.epoch}")

    def leave(self) -> None:
        """The next query need not wait for our lease to end."""
        if self.holds:
            self._ask_for_lease(0, self._after)
            self._after = -1

    @property
    def epoch(self) -> int:
        """Ours; 0 before the first `take_over`."""
        return self._after + 1

    @property
    def holds(self) -> bool:
        return self._after >= 0

    def _ask_for_lease(self, seconds: float, after: int) -> list[int]:
        answer: list[int] = self._send(self._take_over, int(seconds * 1_000_000), after)
        return answer

    # -- what a query does

    def adopt(self) -> int:
        """Seal what is found open, and end what was begun and not ended; the last sealed number."""
        progress = self.progress()
        if progress.releasing:
            self._give_back()
        elif progress.cleared < progress.acked:
            self._clear(progress.acked)
        self._refresh()
        return self.seal()

    def gather(self, limit: int) -> int:
        """Fill the open claim up to so many messages, in bounded scripts; how many lie there."""
        length = self._length()
        while length < limit:
            part, added, length, again = self._send(
                self._gather,
                self.epoch,
                self.sealed + 1,
                self._part + 1,
                min(limit - length, PART),
                open_keys={"members": self.sealed + 1},
            )
            self._part = part
            if not added and not again:
                break
        return int(length)

    def seal(self) -> int:
        """The open claim becomes an offset, if there is anything in it; the last sealed number."""
        sealed: int = self._send(self._seal, self.epoch, self.sealed + 1)
        if sealed != self.sealed:
            self._part = 0
        self.sealed = sealed
        return sealed

    def size(self, number: int) -> int | None:
        """How many messages were sealed under a number; None if it is unknown, or gone."""
        (counts,) = self._look(("HGET", self._key("group"), number))
        return None if counts is None else int(counts.partition(b":")[0])

    def read(self, number: int, start: int, stop: int) -> list[bytes]:
        """Messages of a claim as they lie there, from one place up to another."""
        (members,) = self._look(("LRANGE", self.keys.members(self.group, number), start, stop - 1))
        return list(members)

    def acknowledge(self, number: int) -> None:
        """Everything up to this number is handled for good, and goes."""
        if number <= self.acked:
            return
        self._clear(number)

    def jump(self, number: int) -> None:
        """Claims up to this number are lost and given up: whatever else was claimed goes back, and numbers go on."""
        self.release()
        self._clear(number, jump=1)
        self._refresh()

    def _clear(self, upto: int, jump: int = 0) -> None:
        cleared = self.progress().cleared
        while True:
            arguments = (self.epoch, upto, cleared + 1, jump)
            self.acked, cleared = self._send(self._acknowledge, *arguments, open_keys={"members": cleared + 1})
            if cleared >= self.acked:
                break

    def release(self) -> int:
        """Give everything that was claimed and not handled back to the heads of its lines; how many messages.

        For an operator who knows that no query will ever read them: Spark's next attempt to do so is a data loss.
        """
        self.seal()
        return self._give_back()

    def _give_back(self) -> int:
        self._clear(self.acked)
        given_back, number, left = 0, *self._next_to_release()
        while number:
            keep = max(0, left - _STEP)
            before, at = left, number
            number, left = self._send(self._release, self.epoch, number, keep, open_keys={"members": number})
            given_back += before - (left if number == at else 0)
        self._refresh()
        return given_back

    def _next_to_release(self) -> tuple[int, int]:
        progress = self.progress()
        number = progress.releasing or progress.sealed
        return (number, self.size(number) or 0) if number > progress.acked else (0, 0)

    # -- what anybody may ask

    def progress(self) -> Progress:
        """How far the group has come."""
        names = Progress._fields
        (values,) = self._look(("HMGET", self._key("group"), *names))
        return Progress(*(int((value or b"0").partition(b":")[0]) for value in values))

    def depth(self) -> int:
        """How many messages wait now: in the lines, for their time if it has come, and for another consumer."""
        now = self._now_us()
        pending, size, delayed, expired, alarm, ring = self._look(
            ("LLEN", self.keys.pending),
            ("GET", self.keys.size),
            ("ZCOUNT", self.keys.delayed, "-inf", now),
            ("ZCOUNT", self.keys.leases, "(0", now),
            ("ZSCORE", self.keys.leases, "d"),
            ("ZRANGE", self.keys.tenants, 0, -1),
        )
        returned = self.keys.returned("").encode()  # a tenant need not be UTF-8
        came_back = sum(self._look(*(("ZCARD", returned + name) for name in ring))) if ring else 0
        alarms = int(alarm is not None and 0 < float(alarm) <= now)
        return int(pending) + int(size or 0) + int(delayed) + int(expired) - alarms + int(came_back)

    def oldest(self) -> tuple[int, float | None]:
        """How many messages wait in the lines, and for how many seconds the oldest; cheap enough for each batch."""
        pending, *_, oldest_us, _, _ = self._send(self._stats, "-inf", "")
        return pending, None if oldest_us < 0 else oldest_us / 1_000_000

    def wait_for_work(self, seconds: float = _SLICE_SECONDS) -> None:
        """Sleep until somebody rings, or so long. Whatever ends it, gather: a token that was taken obliges."""
        if self._port.socket_timeout:
            seconds = min(seconds, 0.8 * self._port.socket_timeout)
        try:
            finish(self._port.wait(self.keys.bell, seconds))
        except Exception as error:
            if not self._port.is_transient(error):
                raise
            time.sleep(min(seconds, 0.1))

    def _now_us(self) -> int:
        ((seconds, microseconds),) = self._look(("TIME",))
        return int(seconds) * 1_000_000 + int(microseconds)

    def _length(self) -> int:
        return self.size(self.sealed + 1) or 0

    def _refresh(self) -> None:
        progress = self.progress()
        self.sealed, self.acked, self._part = progress.sealed, progress.acked, progress.part

    # -- how it is said

    def _key(self, name: str) -> str:
        special = {
            "dlq": self.keys.dead_letter,
            "records": self.keys.records("dlq"),
            "group": self.keys.group(self.group),
        }
        return special.get(name) or str(getattr(self.keys, name))

    def _command(self, verb: str, *settings: Argument) -> Command:
        """All its keys but the list of a claim, which each call names."""
        keys = tuple("" if name == "members" else self._key(name) for name in script(verb).keys)
        return Command(script(verb), keys, settings)

    def _send(self, command: Command, *arguments: Argument, open_keys: dict[str, int] | None = None) -> Any:
        """Until it is answered: each of these scripts does the same when it is sent again."""
        if open_keys:
            members = self.keys.members(self.group, open_keys["members"])
            keys = tuple(key or members for key in command.keys)
            command = Command(command.script, keys, command.settings)
        try:
            return finish(self._calls.call(command, arguments))
        except LuaScriptError as error:
            if "STALE" in str(error):
                raise self._lost(f"{command.script.name} came too late") from error
            raise
        except ConfigurationError as error:
            raise self._on_a_cluster() from error

    def _look(self, *commands: tuple[Argument, ...]) -> list[Any]:
        try:
            return finish(self._calls.converse(self.keys.pending, commands, "look"))
        except redis.exceptions.AskError as error:  # a MovedError is one too
            raise self._on_a_cluster() from error

    def _on_a_cluster(self) -> ConfigurationError:
        return ConfigurationError(
            "this server is a node of a Redis Cluster; set the option cluster to true", queue=self.queue
        )

    def _busy(self) -> ConsumerGroupBusyError:
        return ConsumerGroupBusyError(
            f"consumer group {self.group!r} of queue {self.queue!r} is held by another query that goes on; "
            "stop that one, or use another consumerGroup",
            queue=self.queue,
            operation="take_over",
        )

    def _lost(self, how: str) -> ConsumerGroupLostError:
        return ConsumerGroupLostError(
            f"another query has taken consumer group {self.group!r} of queue {self.queue!r} over ({how}); "
            "end this one, or give each query a consumerGroup of its own",
            queue=self.queue,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class Renewal:
    """A daemon thread that keeps a group held while its query works."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._stopped = threading.Event()
        self.lost: Exception | None = None
        # At least four times a lease: one renewal that is lost or late must not cost the group.
        self._pause = min(1.0, groups.lease_seconds / 4)
        self._thread = threading.Thread(target=self._run, name="redis-message-queue-renewal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            try:
                self._groups.renew()
            except ConsumerGroupLostError as error:
                self.lost = error
                return
            except Exception as error:
                # The next one may succeed; if none does, the epoch fences us off.
                log.warning("the lease of a consumer group was not renewed: %s", type(error).__name__)

    def stop(self) -> None:
        """No further renewal begins. One that hangs is not waited for."""
        self._stopped.set()
        self._thread.join(timeout=1)


def check_name(group: str, separator: str) -> None:
    """A name that would make two groups one is refused."""
    if not group or separator in group:
        raise ConfigurationError(
            f"consumerGroup must be a name that is not empty and has no {separator!r} in it, not {group!r}"
        )
