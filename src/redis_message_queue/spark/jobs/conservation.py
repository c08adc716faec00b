"""Tells whether every message of a queue is accounted for: which journal entries the archive has, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from redis_message_queue.spark.jobs.inventory import HeldCount
from redis_message_queue.spark.jobs.report_rows import Row, in_utc
from redis_message_queue.spark.jobs.times import Frame

EXAMPLES = 5  # ids that a verdict names

# -- serials


def serial_runs(entries: pa.Table) -> Frame:
    """Return the runs of serials of each journal without a gap, with the times at their ends."""
    journals = entries.column("journal").fill_null("").to_numpy()
    rows = pd.DataFrame({"journal": journals, "serial": entries.column("serial").to_numpy()})
    rows["at"] = entries.column("at").cast(pa.int64()).to_pandas().astype("Int64")
    rows = rows.sort_values(["journal", "serial"], kind="stable")
    same = (rows["journal"] == rows["journal"].shift()) & (rows["serial"] - rows["serial"].shift() <= 1)
    runs = rows.groupby((~same).cumsum().to_numpy())
    return pd.DataFrame(
        {
            "journal": runs["journal"].first(),
            "first": runs["serial"].first(),
            "last": runs["serial"].last(),
            "rows": runs["serial"].size(),
            # `first` and `last` of a group leave out what is not known.
            "first_at": runs["at"].first(),
            "last_at": runs["at"].last(),
            "least_at": runs["at"].min(),
            "greatest_at": runs["at"].max(),
        }
    ).reset_index(drop=True)


def runs_of(table: pa.Table) -> Frame:
    """Return runs that were packed."""
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def join_runs(parts: Sequence[Frame]) -> Frame:
    """Return the runs of several parts as the runs of all of them."""
    rows = pd.concat(parts, ignore_index=True).sort_values(["journal", "first"], kind="stable")
    joined: list[dict[str, Any]] = []
    for one in rows.to_dict("records"):
        known = joined[-1] if joined else None
        if known is None or known["journal"] != one["journal"] or one["first"] > known["last"] + 1:
            joined.append(one)
            continue
        if one["last"] >= known["last"]:
            known["last_at"] = known["last_at"] if pd.isna(one["last_at"]) else one["last_at"]
        known["first_at"] = one["first_at"] if pd.isna(known["first_at"]) else known["first_at"]
        known["last"] = max(known["last"], one["last"])
        known["rows"] += one["rows"]
        for name, choose in (("least_at", min), ("greatest_at", max)):
            times = [value for value in (known[name], one[name]) if not pd.isna(value)]
            known[name] = choose(times, default=pd.NA)
    return pd.DataFrame(joined, columns=rows.columns)


# -- journals


@dataclass(frozen=True)
class JournalRange:
    """One journal of a queue, as far as the archive has it. A new one begins when the server is flushed."""

    journal: str | None
    began: int  # microseconds, to tell which journal is the newest
    last_serial: int
    repeated: int  # entries that the archive has more than once
    missing: list[Row]  # serials that the archive does not have


def journals_in(runs: Frame, last_serial: Callable[[str], int]) -> list[JournalRange]:
    """Return the journals of the queue, the oldest first."""
    found = []
    for journal, own in runs.groupby("journal", sort=False):
        began = own["least_at"].min()
        newest = max(int(own["last"].max()), last_serial(journal))
        serials = int((own["last"] - own["first"] + 1).sum())
        missing = [{"journal": journal or None, **one} for one in _missing(own, newest)]
        repeated_rows = int(own["rows"].sum()) - serials
        found.append(JournalRange(journal or None, 0 if pd.isna(began) else int(began), newest, repeated_rows, missing))
    return sorted(found, key=lambda one: one.began)


def _missing(runs: Frame, last: int) -> list[Row]:
    """Return the serials from 1 to ``last`` that are not there, and the times of the entries around them."""
    after = runs["last_at"].ffill().shift()
    before = runs["first_at"].bfill()
    found, known = [], 0
    for place, one in enumerate(runs.to_dict("records")):
        if one["first"] > known + 1:
            times = {"after_at": _known(after.iloc[place]), "before_at": _known(before.iloc[place])}
            found.append({"first_serial": known + 1, "count": one["first"] - known - 1, **times})
        known = one["last"]
    if known < last:
        end = {"after_at": _known(runs["greatest_at"].max()), "before_at": None}
        found.append({"first_serial": known + 1, "count": last - known, **end})
    return [in_utc(one) for one in found]


def _known(time: Any) -> int | None:
    return None if pd.isna(time) else int(time)


def newest_of(journals: list[JournalRange]) -> list[JournalRange]:
    """Return the journal that each partition has now. Their names end in the number of the partition."""
    return list({(one.journal or "").partition("/")[2]: one for one in journals}.values())


def held_at_the_end(held: list[HeldCount], journals: list[JournalRange]) -> int | None:
    """Return how many messages the queue held at the last archived entries, if that is known."""
    known = {(one.journal, one.serial): one.messages for one in held}
    found = [known.get((one.journal or "", one.last_serial)) for one in newest_of(journals)]
    return sum(one or 0 for one in found) if found and None not in found else None


# -- the verdict


def balance(
    *,
    entered: int,
    left: dict[str, int],
    open_messages: int,
    unseen: int,
    odd: int,
    purged: int,
    held: int | None,
    missing: int = 0,
    flushed: int = 0,
    foreign: int = 0,
    repeated: int = 0,
    absent_ids: Callable[[], list[str]] = list,
) -> Row:
    """Return the accounts and the verdict: `balanced`, `unbalanced`, or `unknown` if entries are missing."""
    remaining = open_messages - purged
    accounts = [
        {"account": "entered", "messages": entered},
        {"account": "entered_unseen", "messages": unseen},
        *({"account": name, "messages": count} for name, count in left.items()),
        {"account": "purged", "messages": purged},
        {"account": "flushed", "messages": flushed},
        {"account": "remaining", "messages": remaining},
        {"account": "foreign", "messages": foreign},
    ]
    verdict, because = (
        _verdict_on_entries(missing, odd, repeated)
        or _verdict_on_messages(unseen, flushed, remaining, held, foreign, absent_ids)
        or ("balanced", "every message that entered has left, was purged, or is in the queue")
    )
    return {
        "verdict": verdict,
        "because": because,
        "missing_serials": missing,
        "odd": odd,
        "remaining": remaining,
        "held": held,
        "foreign": foreign,
        "accounts": accounts,
    }


def _verdict_on_entries(missing: int, odd: int, repeated: int) -> tuple[str, str] | None:
    if repeated:
        return "unbalanced", f"{repeated:,} journal entries are in the archive more than once"
    if missing:
        return "unknown", (
            f"{missing:,} journal entries are not in the archive: they were trimmed before they were archived, or "
            "deleted from it. So the fate of their messages is not known"
        )
    if odd:
        return "unbalanced", f"{odd:,} messages entered or left more than once, or had events after they had left"
    return None


def _verdict_on_messages(
    unseen: int, flushed: int, remaining: int, held: int | None, foreign: int, absent_ids: Callable[[], list[str]]
) -> tuple[str, str] | None:
    if flushed:
        return "unbalanced", (
            f"{flushed:,} messages were in the queue when its data was deleted from Redis, by FLUSHALL or a failover"
        )
    if unseen:
        return "unknown", f"{unseen:,} messages, and perhaps others, were in the queue before its journal began"
    if held is None:
        if not remaining:
            return None
        return "unknown", f"{remaining:,} messages should be in the queue, but what it held was not recorded"
    ours = held - foreign
    if remaining > ours:
        ids, lost = absent_ids(), remaining - ours
        # A purge leaves no ids behind, so what it removed cannot be told from what is missing.
        named = f"{' (among these)' if len(ids) > lost else ''}: {', '.join(ids)}" if ids else ""
        more = ", ..." if len(ids) in range(EXAMPLES, lost) else ""
        return "unbalanced", f"{lost:,} messages that should be in the queue are not there{named}{more}"
    if foreign or remaining < ours:
        return "unknown", (
            f"the queue had {held - remaining:,} messages that are not in the journal: they were there before it "
            "began, or another program put them there"
        )
    return None
