"""The consumer group of a streaming query: messages leave the queue in numbered batches, kept until they are acked.

A batch is filled, sealed, read as often as Spark asks, and acked or released. The number of a sealed batch is the
offset of a micro-batch. A group has a part in each partition of the queue, with batches of its own: in a queue without
partitions that is one. Numbers of batches are lists, with a number for each partition.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import redis

from redis_message_queue.protocol.consume.claim import DeadLetter, log_dead, read_dead, read_trimming
from redis_message_queue.protocol.port import Argument, Command, Port, finish, split
from redis_message_queue.spark.connection import RedisReader, not_a_single_server, open_partitions
from redis_message_queue.spark.options import SourceOptions
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.envelope import TIME_AT, Envelope, is_message
from redis_message_queue.stored.keys import script_keys
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConsumerGroupBusyError,
    ConsumerGroupLostError,
    DataLossError,
    LuaScriptError,
)

log = logging.getLogger("redis_message_queue")

Batches = list[int]  # one number for each partition

MESSAGES_A_SCRIPT = 5_000  # that one script moves into a batch: some 10 ms of the server's time
_NO_TEXT = "invalid_payload"  # why a message that is not UTF-8 is a dead letter
_COUNTED_BATCHES = 1_000  # that one ack is expected to have: usually it is one batch
_DIGITS = 15  # of a number that a script can count to
_TIME_DIGITS = 16  # of a time in microseconds, until the year 2286
_LARGEST_PAGE = 5_000  # messages that one command reads
_ROWS_A_TASK = 25_000  # unless minPartitions says otherwise: a task costs some 50 ms by itself
_WAIT_SECONDS = 1.0  # the longest wait for a wake-up, which may be lost together with another consumer
_EMPTY_PLACE = b"-"  # of a message that was rejected
_STALE = re.compile(r"STALE epoch \d+ of a consumer group that is at epoch (\d+)")


def _count(value: bytes | None, digits: int = _DIGITS) -> int:
    """Return a number of messages, 0 for what is none: the scripts read it in the same way."""
    return int(value) if value and value.isdigit() and len(value) <= digits else 0


class GroupState(NamedTuple):
    """How far a consumer group has come. Each number includes all batches before it."""

    epoch: int
    sealed: int
    acked: int
    cleared: int
    released: int
    releasing: int
    part: int


class GroupHolder(NamedTuple):
    """Who reads a queue for a consumer group, and how far behind it is."""

    holder: str | None  # None if no query runs, or it has been silent for too long
    lease_seconds: float  # how long others still wait for it
    oldest_seconds: float | None  # how long ago the oldest claimed message was published
    lag: int  # messages that wait and are not claimed


@dataclass
class RunCounts:
    """How many messages a run of a query has claimed, rejected, acked and released. It starts at 0."""

    claimed: int = 0
    rejected: int = 0  # claimed, and moved to the dead letters
    acked: int = 0
    released: int = 0


def split_members(members: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Return stored messages and delivery counts from the members of a batch: see lua/lib/batch.lua.

    Empty places are left out.
    """
    members = [member for member in members if member != _EMPTY_PLACE]
    stored, counts = list(members), [1] * len(members)
    for place, member in enumerate(members):
        if member[:1] < b"\x80":
            count, _, message = member.partition(b":")
            if count.isdigit() and len(count) < 16:  # else another program wrote it, and it is shown as it is
                counts[place], stored[place] = int(count), message
    return stored, counts


class BatchSize(NamedTuple):
    """What a batch has, as its group keeps it: see lua/lib/group.lua."""

    messages: int
    empty: int = 0  # places of messages that were rejected
    slices: int = 0  # in which tasks read it, decided when it was sealed
    known: int = 0
    largest: int = 0  # bytes of a message

    @classmethod
    def read(cls, stored: bytes | None) -> Self:
        """Return the numbers of a stored text, 0 for what is none."""
        return cls(*(_count(one) for one in (stored or b"0").split(b":", 4)))

    @property
    def places(self) -> int:
        """How many places its list has."""
        return self.messages + self.empty

    @property
    def page(self) -> int:
        """How many of them to read at once: as many as fit if each message is as large as the largest."""
        return max(1, min(_LARGEST_PAGE, MAX_BYTES // (self.largest or MAX_BYTES)))

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Where each slice starts and stops: of equal length, or one place more. The same in every replay."""
        parts = max(1, self.slices)
        return [*pairwise(self.places * place // parts for place in range(parts + 1))]


def _is_text(stored: bytes) -> bool:
    try:
        Envelope(stored).payload.decode()
    except UnicodeDecodeError:
        return False
    return True


class GroupPart:
    """The batches of a consumer group in one partition of a queue: that of the reader.

    Call `acquire_group` before anything that writes.
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        options: SourceOptions,
        reader: RedisReader | None = None,
        holder: str | None = None,
    ) -> None:
        self._client: Any = client
        self.queue, self.name, self.lease_seconds = options.queue, options.consumer_group, options.lease_seconds
        self._reader = reader or RedisReader(client, options.keys)
        self.partition, self.keys = self._reader.partition, self._reader.keys
        self._holder = holder or os.urandom(12).hex()
        self._epoch_before = -1  # the epoch before ours
        self._part = 0  # how many scripts have filled the open batch
        self._length: int | None = None  # how many messages the open batch has, if that is known
        self.sealed = self.acked = 0
        self.counts = RunCounts()
        lines = (self.keys.tenant_pending(""), self.keys.expired(""))
        ttl_us = int((options.message_ttl_seconds or 0) * 1_000_000)
        limits = (options.max_delivery_count or 0, options.max_dead_letter_length or 0, ttl_us)
        us = (self.name, self._holder)
        self._fill = self._command("fill_batch", *lines, *limits, *us)
        self._release = self._command("release_batch", *lines, *us)
        self._ack = self._command("ack_batch", *us)
        self._acquire = self._command("acquire_group", *us)
        self._seal = self._command("seal_batch", self._holder)
        self._reject = self._command("reject_members", options.max_dead_letter_length or 0, *us)
        self._rejects = options.invalid_payloads == "dead_letters"
        self._stats = self._command("stats", lines[0])

    # -- the lease

    def acquire_group(self, timeout_seconds: float | None = None) -> None:
        """Become the holder of the group, in the next epoch.

        Waits until the lease of a holder that died ends. A holder that keeps renewing its lease gets two of our leases
        of time, because its process may be about to end.

        Raises:
            ConsumerGroupBusyError: Another query keeps the group.
        """
        after, give_up_at = self.state().epoch, None
        while True:
            acquired, epoch, wait_us = self._ask_for_lease(self.lease_seconds, after)
            if acquired:
                break
            if epoch == after:
                wait, now = wait_us / 1_000_000, time.monotonic()
                if give_up_at is None:
                    # At least a second: a lease may be shorter than a call takes on a busy machine.
                    usual = wait + max(1.0, 2 * self.lease_seconds)
                    give_up_at = now + (usual if timeout_seconds is None else timeout_seconds)
                if now >= give_up_at:
                    raise ConsumerGroupBusyError(
                        f"another running query holds consumer group {self.name!r} of queue {self.queue!r}. "
                        "Stop that query, or use another consumerGroup.",
                        queue=self.queue,
                        operation="acquire_group",
                    )
                time.sleep(max(0.01, min(wait, give_up_at - now)))
            after = epoch
        self._epoch_before = after
        self._refresh()

    def renew_lease(self) -> None:
        """Stay the holder.

        Raises:
            ConsumerGroupLostError: Another query has acquired the group.
            DataLossError: The group is gone from Redis.
        """
        acquired, epoch, _ = self._ask_for_lease(self.lease_seconds, self._epoch_before, renews=True)
        if not acquired:
            raise self._lost(epoch)

    def release_lease(self) -> None:
        """Let the next query start without waiting for the end of our lease."""
        if self._epoch_before >= 0:
            self._ask_for_lease(0, self._epoch_before, renews=True)
            self._epoch_before = -1

    @property
    def port(self) -> Port:
        """How the group reaches the server."""
        return self._reader.port

    @property
    def epoch(self) -> int:
        """Our epoch; 0 before the first `acquire_group`."""
        return self._epoch_before + 1

    def _ask_for_lease(self, seconds: float, after: int, *, renews: bool = False) -> list[int]:
        reply: list[int] = self._send(self._acquire, int(seconds * 1_000_000), after, int(renews))
        return reply

    def holder(self) -> GroupHolder:
        """Return who holds the group, for how long, and how old the oldest message is that it has claimed."""
        (fields, clock) = self._reader.read(("HMGET", self.keys.group(self.name), "holder", "deadline"), ("TIME",))
        now = int(clock[0]) * 1_000_000 + int(clock[1])
        left = (_count(fields[1], _TIME_DIGITS) - now) / 1_000_000
        first = self.state().acked + 1
        pages = (split_members(page)[0] for page in self.read_pages(first, 0, self.batch_size(first) or 0))
        oldest = next((page[:1] for page in pages if page), [])
        published = [Envelope(stored).published_at for stored in oldest if is_message(stored)]
        return GroupHolder(
            holder=None if left <= 0 or not fields[0] else fields[0].decode("utf-8", "replace"),
            lease_seconds=max(0.0, left),
            oldest_seconds=max(0.0, now / 1_000_000 - published[0]) if published else None,
            lag=self.depth(),
        )

    # -- batches

    def recover(self) -> None:
        """Finish what the holder before us began, but for its open batch: seal that one."""
        state = self.state()
        if state.releasing:
            self._release_all()
        elif state.cleared < state.acked:
            self._clear(state.acked)
        self._refresh()
        for number in range(self.acked + 1, self.sealed + 1) if self._rejects else ():
            self._reject_invalid(number)

    def open_batch(self) -> BatchSize:
        """Return what the open batch has."""
        return self.batch(self.sealed + 1) or BatchSize(0)

    def fill_batch(self, limit: int) -> int:
        """Fill the open batch up to ``limit`` messages, in bounded scripts. Returns how many it has."""
        length = self.open_batch().messages if self._length is None else self._length
        while length < limit:
            part, added, length, again, dead, trimming = self._send(
                self._fill,
                self.epoch,
                self.sealed + 1,
                self._part + 1,
                min(limit - length, MESSAGES_A_SCRIPT),
                batch=self.sealed + 1,
            )
            # A request that arrives a second time may fill the batch after we were told that there was nothing to take.
            # Its part has the number that we use next, so this is its reply.
            self._part, self._length = part, length
            self.counts.claimed += added
            self._report_dead(read_dead(dead), trimming)
            if not added and not again:
                break
        return int(length)

    def _report_dead(self, dead: list[DeadLetter], trimming: bytes) -> None:
        """Log the messages that could not be delivered, as a consumer does, and how their list was trimmed."""
        trim_error, cut = read_trimming(trimming)
        log_dead(self.queue, dead, cut)
        if trim_error is not None:
            log.warning("%s: the dead-letter list could not be trimmed (%s)", self.queue, trim_error)

    def seal_batch(self, slices: int = 1) -> int:
        """Make the open batch an offset, unless it is empty. Returns the number of the last sealed batch.

        Every replay reads it in so many ``slices``.
        """
        if self._rejects:
            self._reject_invalid(self.sealed + 1)
        sealed: int = self._send(self._seal, self.epoch, self.sealed + 1, self._part, slices)
        if sealed != self.sealed:
            self._part, self._length = 0, 0
        self.sealed = sealed
        return sealed

    def _reject_invalid(self, number: int) -> None:
        """Move messages of a batch whose payload is no text to the dead letters. Each leaves an empty place.

        Usually before the batch is an offset. A sealed one has such messages if it is from a query that failed because
        of them.
        """
        found: list[tuple[int, bytes, int]] = []  # index, id, bytes
        place = 0
        for page in self.read_pages(number, 0, self.batch_size(number) or 0):
            for at, member in enumerate(page, place):
                for one in split_members([member])[0]:
                    if is_message(one) and not _is_text(one):
                        found.append((at, one[1:TIME_AT], len(one)))
            place += len(page)
        for some in split(found, [size for *_, size in found], MAX_MESSAGES, MAX_BYTES):
            places = [part for at, message, _ in some for part in (at, message)]
            _, trimming = self._send(self._reject, self.epoch, number, _NO_TEXT, *places, batch=number)
            self.counts.rejected += len(some)
            dead = [DeadLetter(message.hex(), 1, _NO_TEXT) for _, message, _ in some]
            self._report_dead(dead, trimming)

    def batch(self, number: int) -> BatchSize | None:
        """Return what a batch has, or None if it is unknown or gone."""
        (stored,) = self._reader.read(("HGET", self.keys.group(self.name), number))
        if stored is None:
            return None
        self._number(stored)  # raises for what is no number
        return BatchSize.read(stored)

    def batch_size(self, number: int) -> int | None:
        """Return how many places a batch has, or None if it is unknown or gone."""
        found = self.batch(number)
        return None if found is None else found.places

    def read_batch(self, number: int, start: int, stop: int) -> list[bytes]:
        """Return the members of a batch from one place up to another."""
        (members,) = self._reader.read(("LRANGE", self.keys.members(self.name, number), start, stop - 1))
        return list(members)

    def read_pages(self, number: int, start: int, stop: int) -> Iterator[list[bytes]]:
        """Return the same in pages of about 4 MB, so that large messages do not block the server or fill the memory."""
        count = (self.batch(number) or BatchSize(0)).page
        while start < stop:
            page = self.read_batch(number, start, min(start + count, stop))
            if not page:
                break
            yield page
            start += len(page)

    def ack_batch(self, number: int) -> None:
        """Remove this batch and all before it: their messages are handled."""
        if number > self.acked:
            self._clear(number)

    def skip_to(self, number: int) -> None:
        """Give up batches up to this number, which Redis has lost. Batches that are there go back to the queue."""
        self.release_batches()
        self._clear(number, skip=1)
        self._refresh()

    def release_batches(self) -> int:
        """Return all messages that are not acked to the front of the queue. Returns how many there were.

        For an operator who knows that no query will read them: to a query that tries, they are lost data.
        """
        self.seal_batch()
        return self._release_all()

    def _clear(self, upto: int, skip: int = 0) -> None:
        cleared, members = self.state().cleared, self._members_upto(upto)
        while True:
            arguments = (self.epoch, upto, cleared + 1, skip)
            self.acked, cleared = self._send(self._ack, *arguments, batch=cleared + 1)
            if cleared >= self.acked:
                break
        self.counts.acked += members

    def _members_upto(self, number: int) -> int:
        """Return how many messages the batches have that are not acked yet, up to this one."""
        numbers = range(self.acked + 1, min(number, self.sealed, self.acked + _COUNTED_BATCHES) + 1)
        (sizes,) = self._reader.read(("HMGET", self.keys.group(self.name), *numbers)) if numbers else ([],)
        return sum(BatchSize.read(one).messages for one in sizes)

    def _release_all(self) -> int:
        """Release from the last batch to the first, and from the end of each, so that the order stays."""
        self._clear(self.acked)
        state, released, left = self.state(), self._members_upto(self.sealed), 0
        number = state.releasing or state.sealed
        if number > state.acked:
            left = self.batch_size(number) or 0
        else:
            number = 0
        while number:
            keep = max(0, left - MAX_MESSAGES)
            number, left = self._send(self._release, self.epoch, number, keep, batch=number)
        self.counts.released += released
        self._refresh()
        return released

    # -- reading

    def state(self) -> GroupState:
        """Return how far the group has come."""
        (values,) = self._reader.read(("HMGET", self.keys.group(self.name), *GroupState._fields))
        return GroupState(*(self._number(value or b"0") for value in values))

    def _number(self, value: bytes) -> int:
        number = value.partition(b":")[0]
        if not number.isdigit() or len(number) > _DIGITS:
            raise LuaScriptError(
                f"consumer group {self.name!r} of queue {self.queue!r} holds a foreign value ({value[:40]!r}) in "
                f"{self.keys.group(self.name)!r}. Repair it, or use another consumerGroup.",
                queue=self.queue,
            )
        return int(number)

    def _refresh(self) -> None:
        state = self.state()
        self.sealed, self.acked, self._part, self._length = state.sealed, state.acked, state.part, None

    def depth(self) -> int:
        """Return how many messages could be claimed now: pending, due, and with expired leases."""
        ((seconds, microseconds),) = self._reader.read(("TIME",))
        now = int(seconds) * 1_000_000 + int(microseconds)
        pending, size, delayed, expired, *alarms, ring = self._reader.read(
            ("LLEN", self.keys.pending),
            ("GET", self.keys.tenant_backlog),
            ("ZCOUNT", self.keys.delayed, "-inf", now),
            ("ZCOUNT", self.keys.leases, "(0", now),
            ("ZSCORE", self.keys.leases, "d"),
            ("ZSCORE", self.keys.leases, "s"),
            ("ZRANGE", self.keys.tenant_ring, 0, -1),
        )
        prefix = self.keys.expired("").encode()  # the name of a tenant need not be UTF-8
        returned = sum(self._reader.read(*(("ZCARD", prefix + tenant) for tenant in ring)))
        due_alarms = sum(alarm is not None and 0 < float(alarm) <= now for alarm in alarms)
        return int(pending) + _count(size) + int(delayed) + int(expired) - due_alarms + int(returned)

    def depth_and_age(self) -> tuple[int, float | None]:
        """Return how many messages are pending, and the age of the oldest in seconds. Cheap enough for each batch."""
        pending, *_, oldest_us, _, _ = self._send(self._stats, "-inf", "")
        return pending, None if oldest_us < 0 else oldest_us / 1_000_000

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- scripts

    def _command(self, name: str, *settings: Argument) -> Command:
        """Return a script with all its keys but the list of a batch, which each call names."""
        given = {"records": self.keys.records("dlq"), "group": self.keys.group(self.name), "members": ""}
        keys = script_keys(self.keys, script(name).keys, **given)
        return Command(script(name), keys, settings)

    def _send(self, command: Command, *arguments: Argument, batch: int | None = None) -> Any:
        """Run a script until it is answered. Each of these scripts may be sent more than once."""
        if batch is not None:
            members = self.keys.members(self.name, batch)
            command = Command(command.script, tuple(key or members for key in command.keys), command.settings)
        try:
            return finish(self._reader.calls.call(command, arguments))
        except LuaScriptError as error:
            if stale := _STALE.search(str(error)):
                raise self._lost(int(stale[1])) from error
            raise
        except ConfigurationError as error:
            raise not_a_single_server(self.queue) from error

    def _lost(self, epoch: int) -> ConsumerGroupLostError | DataLossError:
        """Return the error for a group that is at another epoch, or has another holder in the same one.

        Epochs grow, so one that is not newer than ours was written on a server that has lost ours.
        """
        where, how = (
            f"consumer group {self.name!r} of queue {self.queue!r}",
            f"at epoch {epoch}, this query {self.epoch}",
        )
        if epoch <= self.epoch:
            return DataLossError(
                f"the state of {where} is gone from Redis (it is {how}): the server was flushed, or restored from an "
                "older state, and the messages that this query had claimed may be lost. Start the query again; if its "
                "checkpoint names lost messages, start with a new one, or set failOnDataLoss to false.",
                queue=self.queue,
            )
        return ConsumerGroupLostError(
            f"another query has acquired {where} ({how}). Stop this query, or give each query its own consumerGroup.",
            queue=self.queue,
        )


class ConsumerGroup:
    """A consumer group in all partitions of a queue, over one client. The same query holds all its parts."""

    def __init__(self, parts: Sequence[GroupPart], min_slices: int | None = None) -> None:
        self.parts = parts
        self.queue, self.name, self.lease_seconds = parts[0].queue, parts[0].name, parts[0].lease_seconds
        self._min_slices = min_slices or 1
        self._turn = 0  # which partition is filled first

    @classmethod
    def open(cls, client: redis.Redis | redis.RedisCluster, options: SourceOptions, usual: int = 1) -> Self:
        """Find the partitions: a queue that does not exist yet has the ``usual`` number, if the options say nothing."""
        holder = os.urandom(12).hex()
        readers = open_partitions(client, options, usual)
        return cls([GroupPart(client, options, reader, holder) for reader in readers], options.min_partitions)

    # -- the lease

    def acquire_group(self) -> None:
        """Become the holder in all partitions, in their order: of two queries one waits for the other at the first.

        Raises:
            ConsumerGroupBusyError: Another query keeps the group. Nothing is held then.
        """
        try:
            for one in self.parts:
                one.acquire_group()
        except ConsumerGroupBusyError:
            self.release_lease()
            raise

    def renew_lease(self) -> None:
        """Stay the holder. A partition that does not answer does not keep the others from being renewed.

        Raises:
            ConsumerGroupLostError: Another query has acquired the group.
            DataLossError: The group is gone from Redis.
        """
        failure: Exception | None = None
        for one in self.parts:
            try:
                one.renew_lease()
            except (ConsumerGroupLostError, DataLossError):
                raise
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def release_lease(self) -> None:
        """Let the next query start without waiting for the end of our lease."""
        for one in self.parts:
            one.release_lease()

    # -- batches

    @property
    def sealed(self) -> Batches:
        """The last sealed batch of each partition."""
        return [one.sealed for one in self.parts]

    @property
    def acked(self) -> Batches:
        """The last acked batch of each partition."""
        return [one.acked for one in self.parts]

    @property
    def counts(self) -> RunCounts:
        """What this run has done with all partitions."""
        return RunCounts(*map(sum, zip(*(astuple(one.counts) for one in self.parts), strict=True)))

    def recover(self) -> None:
        """Finish what the holder before us began, and seal its open batches."""
        for one in self.parts:
            one.recover()
        self.seal_batches()

    def fill_batches(self, wanted: int, most: Sequence[int] | None = None) -> int:
        """Fill the open batches up to ``wanted`` messages together, and each up to ``most``. Returns their number.

        The partitions get equal shares, and what one of them does not use goes to the others. Each is the first in
        turn, so that a small batch does not always come from the same.
        """
        count = len(self.parts)
        self._turn = (self._turn + 1) % count
        lengths, limits = [0] * count, list(most or [wanted] * count)
        hungry = [(self._turn + place) % count for place in range(count)]
        while hungry and (room := wanted - sum(lengths)) > 0:
            share = max(1, room // len(hungry))
            for place in hungry[:]:
                room = wanted - sum(lengths)
                limit = min(limits[place], lengths[place] + min(share, max(0, room)))
                lengths[place] = self.parts[place].fill_batch(limit) if limit > lengths[place] else lengths[place]
                if lengths[place] < limit or limit == limits[place]:
                    hungry.remove(place)
        return sum(lengths)

    def seal_batches(self) -> Batches:
        """Make the open batches offsets, unless they are empty. Returns the last sealed batch of each partition.

        Their slices have 25,000 places at most, and are at least as many as the options say, if there are as many
        messages. They are stored with the batch, because a sink may know a row by the task that wrote it: a replay
        with other slices would be other rows.
        """
        lengths = [one.open_batch().places for one in self.parts]
        total = sum(lengths)
        count = max(self._min_slices, -(-total // _ROWS_A_TASK))
        return [
            one.seal_batch(min(length, -(-count * length // total))) if length else one.sealed
            for one, length in zip(self.parts, lengths, strict=True)
        ]

    # -- reading

    def depths(self) -> list[int]:
        """Return how many messages could be claimed now from each partition."""
        return [one.depth() for one in self.parts]

    def depth_and_age(self) -> tuple[int, float | None]:
        """Return how many messages are pending, and the age of the oldest in seconds."""
        depths, ages = zip(*(one.depth_and_age() for one in self.parts), strict=True)
        return sum(depths), max((age for age in ages if age is not None), default=None)

    def wait_for_wakeup(self) -> None:
        """Wait until a publish into any partition wakes us, or for a second.

        Then fill the batches: a wake-up is meant for one consumer.
        """
        port, wakeups = self.parts[0].port, tuple(one.keys.wakeup for one in self.parts)
        seconds = min(_WAIT_SECONDS, 0.8 * port.socket_timeout) if port.socket_timeout else _WAIT_SECONDS
        try:
            finish(port.wait_any(wakeups, seconds) if len(wakeups) > 1 else port.wait(wakeups[0], seconds))
        except Exception as error:
            if not port.is_transient(error):
                raise
            time.sleep(min(seconds, 0.1))

    def close(self) -> None:
        """Close the connections."""
        self.parts[0].close()


class LeaseRenewal:
    """A daemon thread that renews the lease of a consumer group while its query works."""

    def __init__(self, group: ConsumerGroup | GroupPart) -> None:
        self._group = group
        self._stopped = threading.Event()
        self.lost: ConsumerGroupLostError | DataLossError | None = None
        # Four times per lease: one renewal that is lost or late must not cost the group.
        self._pause = min(5.0, group.lease_seconds / 4)
        self._thread = threading.Thread(target=self._run, name="redis-message-queue-renewal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            try:
                self._group.renew_lease()
            except (ConsumerGroupLostError, DataLossError) as error:
                self.lost = error
                return
            except Exception as error:
                # The next renewal may succeed. If none does, the epoch fences this query off.
                log.warning(
                    "%s: the lease of consumer group %s was not renewed (%s), retrying in %.2g s",
                    self._group.queue,
                    self._group.name,
                    type(error).__name__,
                    self._pause,
                )

    def stop(self) -> None:
        """Start no further renewal. A renewal that hangs is not waited for."""
        self._stopped.set()
        self._thread.join(timeout=1)
