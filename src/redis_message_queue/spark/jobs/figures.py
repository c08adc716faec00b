"""Counts what happened to messages, in parts that can be added: those of a task, of a day, of all days.

A message is whole in a part if it entered and left there, once each, and nothing else happened to it. Its figures are
the same whatever else is archived, so they can be kept. The entries of all other messages are the rest of the part,
which is counted together with the rest of other parts.

The definitions, which the page repeats:

- waiting time: from the moment a message could be claimed (it was published or requeued, or its delay or the pause
  before its retry ended) until it was claimed. A message from an expired lease has none: nobody knows when its consumer
  died.
- processing time: from a claim until the handler's outcome (acked, handed off, failed, retried, or dead with an error).
- handler time: how long the handler ran, as its consumer noted it. Where it noted nothing, because it started the
  handler right after the claim, that is the processing time.
- prefetch time: from a claim until the handler started, where the consumer noted it.
- redelivery: a claim that is not the first of its message. The delivery count of an entry is not enough: a failed
  attempt does not use up a delivery.
"""

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from redis_message_queue.spark.job_options import Window, digest
from redis_message_queue.spark.jobs.times import Array, Frame, Times
from redis_message_queue.spark.journal import SCHEMA

ENTERING = ("published", "redriven")
LEAVING = ("acked", "handed_off", "failed", "dead", "expired", "dropped", "discarded", "cancelled")
CLAIMS = ("claimed", "reclaimed")
COUNTED = {
    "published": ENTERING,
    "duplicates": ("duplicate",),
    "delivered": CLAIMS,
    "acked": ("acked", "handed_off"),
    "failed": ("failed",),
    "retried": ("retried",),
    "dead": ("dead",),
    "expired": ("expired",),
    "dropped": ("dropped", "discarded", "cancelled"),
}
_OUTCOMES = ("acked", "handed_off", "failed", "retried", "discarded")  # and `dead` with an error
_GOOD = ("acked", "handed_off", "discarded")
_EVENTS = (*ENTERING, *LEAVING, *CLAIMS, "duplicate", "retried", "requeued", "delayed", "purged", "deleted", "gap", "")
STATES = ("waiting", "in_flight", "delayed")
# What an operator removes from these is subtracted: the journal does not say which messages these were.
_REMOVED_FROM = {"pending": "waiting", "orphans": "in_flight", "delayed": "delayed"}
SPREADS = ("waiting", "processing", "handler", "prefetch")
MINUTE, SECOND = 60_000_000, 1_000_000
# A journal shorter than this gets a table by second too: by minute its plots would be a few dots.
SHORT = 600 * SECOND
NEVER = np.iinfo(np.int64).min  # instead of a time that is not known
TIMELESS = -1  # the bucket of entries without a time, which say that others are missing
# Of all columns of an entry, those that a report needs.
COLUMNS = (
    *("serial", "at", "event", "id", "tenant", "due", "count", "error_type", "reason", "target", "journal"),
    *("started", "handled"),
)
NO_ENTRIES = pa.Table.from_pylist(
    [], pa.schema([pa.field("journal", pa.string()) if one == "journal" else SCHEMA.field(one) for one in COLUMNS])
)
_OVER_TIME = ("published", "delivered", "acked", "failed", "dead")  # of a tenant


@dataclass(frozen=True)
class _Sums:
    """How rows of a table are added: those with the same keys become one."""

    keys: tuple[str, ...]
    sums: tuple[str, ...]
    least: tuple[str, ...] = ()
    greatest: tuple[str, ...] = ()
    newest: tuple[str, ...] = ()  # of the greatest serial

    @property
    def columns(self) -> tuple[str, ...]:
        return *self.keys, *self.sums, *self.least, *self.greatest, *self.newest

    def add(self, tables: Sequence[Frame]) -> Frame:
        rows = pd.concat(tables, ignore_index=True)
        if self.newest:
            rows = rows.sort_values("serial", kind="stable")
        ways = dict.fromkeys(self.sums, "sum") | dict.fromkeys(self.least, "min")
        ways |= dict.fromkeys(self.greatest, "max") | dict.fromkeys(self.newest, "last")
        return rows.groupby(list(self.keys), sort=True).agg(ways).reset_index()


_TABLES = {
    "buckets": _Sums(
        ("bucket",),
        (*COUNTED, "outcomes", "errors", "removed", "entries", "redriven", "reclaimed", "redelivered", "waits"),
        ("first_at",),
        ("last_at",),
    ),
    "levels": _Sums(("bucket",), STATES),
    "tenants": _Sums(("tenant",), (*COUNTED, "served", "demand", "not_due", "undelayed")),
    "tenant_buckets": _Sums(("bucket", "tenant"), _OVER_TIME),
    "failures": _Sums(("error_type",), ("failed", "retried", "dead", "total", "messages")),
    "letters": _Sums(
        ("error_type", "reason", "tenant"), ("letters",), ("first_at",), ("last_at", "serial"), ("newest_id",)
    ),
    "accounts": _Sums(("state", "journal"), ("entered", "messages", "odd")),
    "purged": _Sums(("target",), ("messages",)),
}
_TIMES_KEYS = ("bucket", "tenant", "spread")
# What is kept from another format is not used. Raise the number if a figure is computed in another way.
FORMAT = f"2-{digest(*(column for how in _TABLES.values() for column in how.columns), *COLUMNS)}"


@dataclass(frozen=True)
class Figures:
    """The figures of a part. An unknown text is empty, and times are microseconds."""

    size: int  # of the buckets, in microseconds: seconds in a short part, otherwise minutes
    tables: Mapping[str, Frame]
    times: Times

    @classmethod
    def add(cls, parts: Sequence["Figures"]) -> "Figures":
        """Return the sum of parts, which must have different messages."""
        if len(parts) == 1:
            return parts[0]
        size = max(one.size for one in parts)
        tables = {name: how.add([_floored(one.tables[name], size) for one in parts]) for name, how in _TABLES.items()}
        return cls(size, tables, Times.merge([_floored_times(one.times, size) for one in parts], _TIMES_KEYS))

    def by(self, size: int) -> "Figures":
        """Return the same by larger buckets."""
        if size == self.size:
            return self
        tables = {name: how.add([_floored(self.tables[name], size)]) for name, how in _TABLES.items()}
        return Figures(size, tables, Times.merge([_floored_times(self.times, size)], _TIMES_KEYS))

    def before(self) -> "Figures":
        """Return what counts of a part before the window: levels, accounts, and what tenants still waited for."""
        nothing = empty()
        tenants = self.tables["tenants"]
        waiting = tenants.assign(demand=tenants["demand"] - tenants["served"], **dict.fromkeys((*COUNTED, "served"), 0))
        kept = {name: self.tables[name] for name in ("levels", "accounts", "purged")}
        return Figures(SECOND, {**nothing.tables, **kept, "tenants": waiting}, nothing.times)

    def after(self) -> "Figures":
        """Return what counts of a part after the window."""
        before = self.before()
        return Figures(SECOND, {**before.tables, "tenants": empty().tables["tenants"]}, before.times)

    def to_bytes(self) -> bytes:
        return pack({"size": self.size}, {**self.tables, **self.times.tables()})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Figures":
        told, found = unpack(content)
        frames = {name: one.to_pandas() for name, one in found.items()}
        return cls(told["size"], frames, Times.from_tables(frames.pop("groups"), frames.pop("values")))


def _floored(table: Frame, size: int) -> Frame:
    if "bucket" not in table:
        return table
    bucket = table["bucket"]
    return table.assign(bucket=bucket.where(bucket < 0, bucket // size * size))


def _floored_times(times: Times, size: int) -> Times:
    return Times(_floored(times.groups, size), times.group, times.value, times.count)


@cache
def empty() -> Figures:
    """Return the figures of no entries."""
    return count_messages(NO_ENTRIES).figures


# -- as bytes


def pack(told: Mapping[str, Any], tables: Mapping[str, Any]) -> bytes:
    """Return values of JSON, and tables of Arrow or pandas, as one file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo("told.json"), json.dumps(told))  # without the time: equals have one checksum
        for name, table in tables.items():
            rows = table if isinstance(table, pa.Table) else pa.Table.from_pandas(table, preserve_index=False)
            file.writestr(zipfile.ZipInfo(f"{name}.arrow"), to_ipc(rows.replace_schema_metadata()))
    return buffer.getvalue()


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return what was packed."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        names = [name for name in file.namelist() if name.endswith(".arrow")]
        tables = {name.removesuffix(".arrow"): from_ipc(file.read(name)) for name in names}
        return json.loads(file.read("told.json")), tables


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as bytes of Arrow: for small tables a tenth of the time of Parquet."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_ipc(content: bytes) -> pa.Table:
    """Return a table from bytes of Arrow."""
    with pa.ipc.open_stream(pa.BufferReader(content)) as reader:
        return reader.read_all()


# -- counting


@dataclass(frozen=True)
class Counted:
    """What became of the entries of a part."""

    figures: Figures
    rest: pa.Table  # the entries of messages that are not whole
    whole: Array  # the hashes of the ids of those that are, sorted
    ids: Frame  # of each message with its last state; only if all were counted


def count_messages(
    entries: pa.Table,
    window: Window | None = None,
    *,
    only_whole: bool = False,
    never_whole: Array | None = None,
    last_at: int | None = None,
) -> Counted:
    """Count the messages of a part: all of them, or only those that are whole. Nothing of another part is needed.

    Args:
        entries: All entries of the part, in any order.
        window: The times to report on. Levels, accounts and demand are about all times.
        only_whole: Leave the entries of other messages in the rest.
        never_whole: The hashes of ids that are in other parts too.
        last_at: The time of the last entry of all parts. Whole messages do not need it: they have left by then.
    """
    found = _Messages(entries.select(COLUMNS))
    counted = np.ones(len(found.starts), bool)
    hashes = np.empty(0, np.uint64)
    rest = entries.slice(0, 0)
    if only_whole:
        own = found.hashes()
        counted = found.is_whole() & ~np.isin(own, np.empty(0, np.uint64) if never_whole is None else never_whole)
        hashes = np.sort(own[counted & found.has_id])
        rest = found.entries.filter(pa.array(~counted[found.message]))
    figures = _Count(found, counted[found.message], counted, window or Window(), last_at).figures()
    return Counted(figures, rest, hashes, pd.DataFrame() if only_whole else found.states())


def hash_ids(ids: pa.Array) -> Array:
    """Return a number of 64 bits for each id."""
    numbers: Array = pd.util.hash_array(ids.to_numpy(zero_copy_only=False).astype(object), categorize=False)
    return numbers


class _Messages:
    """Entries in the order of messages and serials."""

    def __init__(self, entries: pa.Table) -> None:
        encoded = pc.dictionary_encode(entries.column("id").combine_chunks())
        code = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        serial = entries.column("serial").to_numpy()
        order = np.lexsort((serial, code))
        self.entries = entries.take(pa.array(order)).combine_chunks()
        self.code, self.serial, self.ids = code[order], serial[order], encoded.dictionary
        rows = len(order)
        # An entry without an id belongs to no message, and stands alone.
        is_first = np.ones(rows, bool)
        is_first[1:] = (self.code[1:] != self.code[:-1]) | (self.code[1:] < 0)
        self.starts = np.flatnonzero(is_first)
        self.message = np.cumsum(is_first) - 1
        self.ends = np.append(self.starts[1:], rows) - 1 if rows else self.starts
        self.has_id = self.code[self.starts] >= 0
        events = pc.index_in(self.entries.column("event"), value_set=pa.array(_EVENTS))
        self.event = events.fill_null(len(_EVENTS) - 1).to_numpy().astype(np.int64)

    def number(self, name: str) -> Array:
        """A column of numbers or times; NEVER where there is none."""
        column: Array = self.entries.column(name).cast(pa.int64()).fill_null(NEVER).to_numpy()
        return column

    @cached_property
    def at(self) -> Array:
        return self.number("at")

    def text(self, name: str) -> tuple[Array, Array]:
        """A column of texts as codes, and the texts."""
        encoded = pc.dictionary_encode(self.entries.column(name).combine_chunks().fill_null(""))
        return encoded.indices.to_numpy(), encoded.dictionary.to_numpy(zero_copy_only=False).astype(object)

    def is_in(self, *events: str) -> Array:
        is_one: Array = np.array([one in events for one in _EVENTS])[self.event]
        return is_one

    def per_message(self, rows: Array) -> Array:
        """How many of these entries each message has."""
        counts: Array = np.bincount(self.message, rows, minlength=len(self.starts))
        return counts.astype(np.int64)

    def hashes(self) -> Array:
        own = hash_ids(self.ids) if len(self.ids) else np.zeros(1, np.uint64)
        hashes: Array = own[self.code[self.starts]]  # whatever it is where there is no id
        return hashes

    def is_whole(self) -> Array:
        entering, leaving, duplicate = (self.is_in(*one) for one in (ENTERING, LEAVING, ("duplicate",)))
        length, duplicates = self.per_message(np.ones(len(self.code))), self.per_message(duplicate)
        journal, _ = self.text("journal")
        changes = np.append(False, journal[1:] != journal[:-1]) & (np.arange(len(journal)) != self.starts[self.message])
        lived: Array = (self.per_message(entering) == 1) & (self.per_message(leaving) == 1) & (duplicates == 0)
        lived &= entering[self.starts] & leaving[self.ends] & (self.per_message(changes) == 0)
        lived |= ~self.has_id | (duplicates == length)
        return lived

    def last_before(self, is_set: Array) -> Array:
        """The last entry of the same message before each one for which this holds, or -1."""
        place = np.arange(len(is_set))
        last = np.maximum.accumulate(np.where(is_set, place, -1)) if len(is_set) else place
        before = np.append(-1, last[:-1])[: len(is_set)]
        return np.where(before >= self.starts[self.message], before, -1)

    def states(self) -> Frame:
        """Each message: its id, how often it entered and left, its last event and the journal of that."""
        is_known = ~self.is_in("duplicate")
        rows = pd.DataFrame({"message": self.message, "place": np.arange(len(self.message))})
        last = rows[is_known & self.has_id[self.message]].groupby("message")["place"].last()
        place, message = last.to_numpy(), last.index.to_numpy()
        journal, names = self.text("journal")
        event = self.entries.column("event").to_numpy()
        return pd.DataFrame(
            {
                "id": self.ids.to_numpy(zero_copy_only=False).astype(object)[self.code[place]],
                "entered": self.per_message(self.is_in(*ENTERING))[message],
                "left": self.per_message(self.is_in(*LEAVING))[message],
                "state": event[place],
                "journal": names[journal[place]] if len(names) else "",
            }
        )


class _Count:
    """The figures of some of the messages."""

    def __init__(
        self, found: _Messages, rows: Array, messages: Array, window: Window, last_at: int | None = None
    ) -> None:
        self._found, self._rows, self._messages, self._at = found, rows, messages, found.at
        since, until = window.bounds
        self._end = until if last_at is None else min(until, last_at + 1)
        is_timeless = self._at == NEVER
        self._inside = rows & (is_timeless | ((self._at >= since) & (self._at < until)))
        self._before = rows & ~is_timeless & (self._at < since)
        self._has_id = found.has_id[found.message]
        self._is_claim = found.is_in(*CLAIMS)
        self._has_error = found.entries.column("error_type").is_valid().to_numpy()
        self._outcome = found.is_in(*_OUTCOMES) | (found.is_in("dead") & self._has_error)
        self._target, self._targets = found.text("target")
        is_target = np.array([one in _REMOVED_FROM for one in self._targets], bool)
        self._removed = found.is_in("purged", "deleted") & is_target[self._target]
        self._count = found.number("count")
        self._tenant, self._tenants = found.text("tenant")
        times = self._at[self._inside & ~is_timeless]
        self._size = SECOND if not len(times) or times.max() - times.min() < SHORT else MINUTE
        self._bucket = self._bucket_of(self._at)

    def figures(self) -> Figures:
        again, first = self._deliveries()
        spreads = self._spreads()
        waits = np.bincount(spreads["waiting"][0], minlength=len(self._at)) > 0
        tables = {
            "buckets": self._buckets(again, waits),
            "levels": self._levels(),
            "tenants": self._by_tenant(first),
            "tenant_buckets": self._tenant_buckets(),
            "failures": self._failures(),
            "letters": self._letters(),
            "accounts": self._accounts(),
            "purged": self._purged(),
        }
        return Figures(self._size, tables, self._times(spreads))

    def _bucket_of(self, at: Array) -> Array:
        return np.where(at == NEVER, TIMELESS, at // self._size * self._size)

    def _deliveries(self) -> tuple[Array, Array]:
        """Which claims are redeliveries, and which are the first of their message."""
        earlier = self._found.last_before(self._is_claim) >= 0
        again = self._is_claim & ((self._count > 1) | earlier)
        return again, self._is_claim & ~again & (self._count != NEVER)

    def _spreads(self) -> dict[str, tuple[Array, Array]]:
        """The entries that end a time within the window, and its microseconds."""
        found, at = self._found, self._at
        due = found.number("due")
        # When a message could be claimed next. A claim resets it, so that a lost entry does not lengthen the next wait.
        can_be_claimed, waits = found.is_in(*ENTERING, "requeued"), found.is_in("delayed", "retried")
        available = np.where(can_be_claimed, at, np.where(waits, due, NEVER))
        available = _value_at(available, found.last_before(can_be_claimed | waits | self._is_claim))
        ended = found.is_in(*LEAVING, "retried", "requeued")
        claimed = _value_at(np.where(self._is_claim, at, NEVER), found.last_before(self._is_claim | ended))
        handled, started = found.number("handled"), found.number("started")
        is_wait = found.is_in("claimed") & (available != NEVER)
        is_work = self._outcome & (claimed != NEVER)
        worked = np.maximum(0, at - claimed)
        found_times = {
            "waiting": (is_wait, np.maximum(0, at - available)),
            "processing": (is_work, worked),
            "handler": (is_work, np.where(handled != NEVER, handled, worked)),
            "prefetch": (is_work & (started != NEVER), np.maximum(0, started - claimed)),
        }
        places = {name: np.flatnonzero(which & self._inside) for name, (which, _) in found_times.items()}
        return {name: (places[name], values[places[name]]) for name, (_, values) in found_times.items()}

    def _times(self, spreads: Mapping[str, tuple[Array, Array]]) -> Times:
        place = np.concatenate([found for found, _ in spreads.values()])
        value = np.concatenate([found for _, found in spreads.values()])
        spread = np.repeat(np.arange(len(SPREADS)), [len(found) for found, _ in spreads.values()])
        buckets, bucket = np.unique(self._bucket[place], return_inverse=True)
        tenants = max(1, len(self._tenants))
        codes, group = np.unique((bucket * tenants + self._tenant[place]) * len(SPREADS) + spread, return_inverse=True)
        groups = pd.DataFrame(
            {
                "bucket": buckets[codes // len(SPREADS) // tenants],
                "tenant": self._tenants[codes // len(SPREADS) % tenants] if len(codes) else np.empty(0, object),
                "spread": np.array(SPREADS, object)[codes % len(SPREADS)],
                "rough": np.zeros(len(codes), bool),
            }
        )
        return Times.of(groups, group, value, np.ones(len(value), np.int64), _TIMES_KEYS)

    def _counts(self, code: Array, groups: int, rows: Array, names: Iterable[str] = COUNTED) -> dict[str, Array]:
        """How many entries of each kind there are in each group."""
        kinds = len(_EVENTS)
        cells = np.bincount(code[rows] * kinds + self._found.event[rows], minlength=groups * kinds)
        by_event = cells.reshape(groups, kinds)
        places = {name: [_EVENTS.index(one) for one in COUNTED[name]] for name in names}
        return {name: by_event[:, place].sum(axis=1) for name, place in places.items()}

    def _buckets(self, again: Array, waits: Array) -> Frame:
        rows = self._inside
        buckets, code = np.unique(self._bucket, return_inverse=True)
        counts = self._counts(code, len(buckets), rows)
        errors = self._outcome & ~self._found.is_in(*_GOOD)
        others = {
            "outcomes": self._outcome,
            "errors": errors,
            "entries": np.ones(len(code), bool),
            "redriven": self._found.is_in("redriven"),
            "reclaimed": self._found.is_in("reclaimed"),
            "redelivered": again,
            "waits": waits,
        }
        counts |= {name: np.bincount(code[rows & one], minlength=len(buckets)) for name, one in others.items()}
        counts["removed"] = _sum(code, self._count, rows & self._removed, len(buckets))
        first = np.full(len(buckets), np.iinfo(np.int64).max)
        last = np.full(len(buckets), NEVER)
        timed = rows & (self._at != NEVER)
        np.minimum.at(first, code[timed], self._at[timed])
        np.maximum.at(last, code[timed], self._at[timed])
        table = pd.DataFrame({"bucket": buckets, **counts, "first_at": first, "last_at": last})
        return table[table["entries"] > 0][list(_TABLES["buckets"].columns)].reset_index(drop=True)

    def _levels(self) -> Frame:
        """By how much the number of messages in each state changes.

        A message is in a state from its event until its next one. A delayed message waits from when it is due.
        """
        found, at = self._found, self._at
        following = np.append(at[1:], NEVER)[: len(at)]
        is_last = np.zeros(len(at), bool)
        is_last[found.ends] = True
        following = np.where(is_last, NEVER, following)
        following = np.where((following != NEVER) & (following < at), at, following)
        due = found.number("due")
        own = self._rows & self._has_id
        waiting, claimed = own & found.is_in(*ENTERING, "requeued"), own & self._is_claim
        delayed = own & found.is_in("delayed", "retried")
        later = delayed & (due != NEVER)
        from_then = np.maximum(due, at)
        ready = np.where(following == NEVER, from_then, np.minimum(following, from_then))
        spans = (
            ("waiting", waiting, at, following),
            ("in_flight", claimed, at, following),
            ("delayed", delayed & ~later, at, following),
            ("delayed", later, at, ready),
            ("waiting", later, ready, following),
        )
        changes: list[tuple[str, Array, Any]] = [(state, start[rows], 1) for state, rows, start, _ in spans]
        changes += [(state, stop[rows & (stop != NEVER)], -1) for state, rows, _, stop in spans]
        for target, state in _REMOVED_FROM.items():
            rows = self._rows & self._removed & (self._targets[self._target] == target if len(at) else False)
            rows &= self._count != NEVER
            changes.append((state, self._at[rows], -self._count[rows]))
        times = np.concatenate([moment for _, moment, _ in changes])
        buckets, code = np.unique(self._bucket_of(times), return_inverse=True)
        ends = np.cumsum([len(moment) for _, moment, _ in changes])
        table = {state: np.zeros(len(buckets), np.int64) for state in STATES}
        for (state, moment, change), end in zip(changes, ends, strict=True):
            own_code = code[end - len(moment) : end]
            np.add.at(table[state], own_code, change)
        return pd.DataFrame({"bucket": buckets, **table})

    def _by_tenant(self, first: Array) -> Frame:
        """What each tenant published and got. Its demand is what waited before the window, and what it published.

        What was cancelled before anybody had it is no demand. What is not due at the end is none either, but told
        apart: some of it may have been removed, and the journal does not say which messages were.
        """
        tenants, rows = len(self._tenants), self._inside
        known = (self._inside | self._before) & (self._has_id | self._removed)
        asked = np.bincount(self._tenant[known & self._found.is_in(*ENTERING)], minlength=tenants)
        got_before = np.bincount(self._tenant[known & first & ~self._inside], minlength=tenants)
        cancelled, not_due = self._never_offered(known & self._has_id)
        counts = self._counts(self._tenant, tenants, rows & known)
        counts["served"] = np.bincount(self._tenant[rows & known & first], minlength=tenants)
        counts["demand"] = asked - got_before - _sum(self._tenant, self._count, known & self._removed, tenants)
        counts["demand"] -= np.bincount(self._tenant[cancelled], minlength=tenants)
        counts["not_due"] = np.bincount(self._tenant[not_due], minlength=tenants)
        is_delayed = (self._targets == "delayed")[self._target]
        counts["undelayed"] = _sum(self._tenant, self._count, known & self._removed & is_delayed, tenants)
        is_there = np.bincount(self._tenant[known], minlength=tenants) > 0
        return pd.DataFrame({"tenant": self._tenants, **counts})[is_there].reset_index(drop=True)

    def _never_offered(self, known: Array) -> tuple[Array, Array]:
        """The first entry of each message that was cancelled before its first claim, and of each not due at the end."""
        found = self._found
        entering = np.flatnonzero(known & found.is_in(*ENTERING))
        message, place = np.unique(found.message[entering], return_index=True)
        entered = entering[place]
        unclaimed = found.per_message(known & self._is_claim)[message] == 0
        cancelled = found.per_message(known & found.is_in("cancelled"))[message] > 0
        last = np.full(len(found.starts), -1)
        changes = np.flatnonzero(known & ~found.is_in("duplicate"))
        np.maximum.at(last, found.message[changes], changes)
        not_due = (found.is_in("delayed") & (found.number("due") >= self._end))[last[message]]
        return entered[unclaimed & cancelled], entered[unclaimed & not_due]

    def _tenant_buckets(self) -> Frame:
        rows = self._inside & self._has_id & (self._at != NEVER)
        tenants = max(1, len(self._tenants))
        buckets, bucket = np.unique(self._bucket, return_inverse=True)
        codes, code = np.unique(bucket * tenants + self._tenant, return_inverse=True)
        counts = self._counts(code, len(codes), rows, _OVER_TIME)
        is_there = np.bincount(code[rows], minlength=len(codes)) > 0
        names = self._tenants[codes % tenants] if len(codes) else np.empty(0, object)
        table = pd.DataFrame({"bucket": buckets[codes // tenants], "tenant": names, **counts})
        return table[is_there].reset_index(drop=True)

    def _failures(self) -> Frame:
        found, rows = self._found, self._inside & self._has_error & self._found.is_in("failed", "retried", "dead")
        code, names = found.text("error_type")
        counts = self._counts(code, len(names), rows, ("failed", "retried", "dead"))
        counts["total"] = np.bincount(code[rows], minlength=len(names))
        messages = np.unique(np.stack([code[rows], found.message[rows]]), axis=1)[0]
        counts["messages"] = np.bincount(messages, minlength=len(names))
        table = pd.DataFrame({"error_type": names, **counts})
        return table[table["total"] > 0].reset_index(drop=True)

    def _letters(self) -> Frame:
        rows = np.flatnonzero(self._inside & self._found.is_in("dead"))
        dead = self._found.entries.take(pa.array(rows))
        texts = {name: dead.column(name).fill_null("").to_numpy() for name in ("error_type", "reason", "tenant")}
        at = self._at[rows]
        table = pd.DataFrame(
            {
                **texts,
                "letters": np.ones(len(rows), np.int64),
                "first_at": at,
                "last_at": at,
                "serial": self._found.serial[rows],
                "newest_id": dead.column("id").fill_null("").to_numpy(),
            }
        )
        return _TABLES["letters"].add([table])

    def _accounts(self) -> Frame:
        """Messages by their last event. After a message has left, no event may follow."""
        states = self._found.states()
        # The messages that are counted, in the order of `states`: those with an id and more than duplicates.
        has_more = self._found.per_message(~self._found.is_in("duplicate")) > 0
        states = states[self._messages[has_more & self._found.has_id]]
        has_left = states["state"].isin(LEAVING)
        odd = (states["entered"] > 1) | (states["left"] > 1) | ((states["left"] == 1) & ~has_left)
        entered = (states["entered"] > 0).astype(np.int64)
        rows = states.assign(entered=entered, messages=np.int64(1), odd=odd.astype(np.int64))
        # Only of an open message it matters whether its journal is the newest.
        rows["journal"] = rows["journal"].where(~has_left, "")
        return _TABLES["accounts"].add([rows[list(_TABLES["accounts"].columns)]])

    def _purged(self) -> Frame:
        rows = self._rows & self._removed & (self._count != NEVER)
        table = pd.DataFrame({"target": self._targets[self._target[rows]], "messages": self._count[rows]})
        return _TABLES["purged"].add([table])


def _value_at(values: Array, places: Array) -> Array:
    return np.where(places >= 0, values[places], NEVER) if len(values) else values


def _sum(code: Array, values: Array, rows: Array, groups: int) -> Array:
    sums = np.zeros(groups, np.int64)
    known = rows & (values != NEVER)
    np.add.at(sums, code[known], values[known])
    return sums
