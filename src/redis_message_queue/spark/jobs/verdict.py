"""Tells whether every message of a queue is accounted for: by its incidents, and by what the queue held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redis_message_queue.spark.jobs.inventory import inventory_rows
from redis_message_queue.spark.jobs.lake import STATES, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
EXAMPLES = 5  # ids that a verdict names
_ALL_WELL = "every message that entered has left, was purged, or is in the queue"
# In the order in which they decide.
_INCIDENTS = {
    "repeated": ("unbalanced", "{count} journal entries are in the archive more than once"),
    "missing": (
        "unknown",
        "{count} journal entries are not in the archive: they were trimmed before they were archived, or deleted from "
        "it. So the fate of their messages is not known",
    ),
    "violation": ("unbalanced", "{count} messages entered or left more than once, or had events after they had left"),
    "lost": (
        "unbalanced",
        "{count} messages were in the queue when its data was deleted from Redis, by FLUSHALL or a failover",
    ),
    "unseen": ("unknown", "{count} messages, and perhaps others, were in the queue before its journal began"),
}
_BY_RETENTION = ("missing", "unseen")


@dataclass(frozen=True)
class Accounts:
    """What is known of the messages of a queue that have not ended, and of its incidents."""

    open: Mapping[str, int]  # messages by state, by the journal
    purged: Mapping[str, int]  # of these
    incidents: Sequence[Row] = ()
    held: int | None = None  # by the queue itself, at the last entry
    foreign: int = 0  # of these, not in the journal
    absent_ids: Sequence[str] = field(default=())

    @property
    def remaining(self) -> int:
        return sum(self.open.values()) - sum(self.purged.values())

    def found(self, kind: str) -> list[Row]:
        return [one for one in self.incidents if one["kind"] == kind]

    def count(self, kind: str) -> int:
        return sum(one["messages"] for one in self.found(kind))

    def acknowledged(self, state: str) -> int:
        """Return how many absent or foreign messages operators have acknowledged."""
        return sum(one["messages"] for one in self.found("acknowledged") if one["state"] == state)


@dataclass(frozen=True)
class Verdict:
    """`balanced`, `unbalanced`, or `unknown` if entries are missing, and why."""

    verdict: str
    because: str
    since: datetime | None = None  # when an operator has acknowledged what was before
    accounted_for: tuple[str, ...] = ()  # by retention and by operators


def judge(accounts: Accounts) -> Verdict:
    """Return the verdict."""
    acknowledged = accounts.found("acknowledged")
    upto = max((one["refresh"] for one in acknowledged), default=-1)
    since = max((one["at"] for one in acknowledged), default=None)
    retained = min((one["refresh"] for one in accounts.found("retention")), default=None)
    notes = [f"{one['at']:%Y-%m-%d}: {one['reason']}" for one in acknowledged if one["state"] is None]
    if retained is not None:
        notes.append(f"entries that are older than what is kept ({accounts.count('retention'):,})")

    def is_open(one: Row) -> bool:
        if one["refresh"] <= upto:
            return False
        by_retention = one["kind"] in _BY_RETENTION and retained is not None and one["refresh"] > retained
        return not (by_retention and one["first_serial"] in (1, None))

    for kind, (word, text) in _INCIDENTS.items():
        found = [one for one in accounts.found(kind) if is_open(one)]
        if count := sum(one["messages"] for one in found):
            return Verdict(word, text.format(count=f"{count:,}") + _named(found), since, tuple(notes))
    word, because = _compare(accounts) or ("balanced", _ALL_WELL)
    return Verdict(word, because, since, tuple(notes))


def _named(found: Sequence[Row]) -> str:
    ids = [name for one in found for name in one["ids"] or ()][:EXAMPLES]
    return f": {', '.join(ids)}" if ids else ""


def _compare(accounts: Accounts) -> tuple[str, str] | None:
    """Compare what should be in the queue with what it held, without what operators have acknowledged."""
    remaining = accounts.remaining - accounts.acknowledged("absent")
    if accounts.held is None:
        if not remaining:
            return None
        return "unknown", f"{remaining:,} messages should be in the queue, but what it held was not recorded"
    ours = accounts.held - accounts.foreign
    if remaining > ours:
        ids, lost = accounts.absent_ids, remaining - ours
        # A purge leaves no ids behind, so what it removed cannot be told from what is missing.
        named = f"{' (among these)' if len(ids) > lost else ''}: {', '.join(ids)}" if ids else ""
        more = ", ..." if len(ids) in range(EXAMPLES, lost) else ""
        return "unbalanced", f"{lost:,} messages that should be in the queue are not there{named}{more}"
    if accounts.foreign > accounts.acknowledged("foreign") or remaining < ours:
        return "unknown", (
            f"the queue had {accounts.held - remaining:,} messages that are not in the journal: they were there before "
            "it began, or another program put them there"
        )
    return None


def accounts_of(spark: "SparkSession", lake: Lake) -> Accounts:
    """Return the accounts of a queue, whose tables are up to its journal."""
    incidents = lake.rows(lake.incidents)
    ended = {one["journal"] for one in incidents if one["kind"] == "lost"}
    open_messages = lake.open_messages.read(spark, lake.queue, ("id", "state"))
    by_state = dict.fromkeys(STATES, 0) | {
        row.state: row["count"] for row in open_messages.groupBy("state").count().collect()
    }
    purged = dict.fromkeys(STATES, 0)
    for one in incidents:
        if one["kind"] == "purged" and one["journal"] not in ended:
            purged[one["state"]] += one["messages"]
    held, ids = inventory_rows(spark, lake.location, lake.queue)
    covered = {
        row["journal"]: row["serial"]
        for row in lake.rows(lake.refreshes)
        if row["refresh"] == lake.version(lake.refreshes)
    }
    if not held or any(covered.get(one["journal"]) != one["serial"] for one in held):
        return Accounts(by_state, purged, incidents)
    foreign, absent = _differences(spark, lake, open_messages.select("id"), ids)
    return Accounts(
        by_state,
        purged,
        incidents,
        sum(sum(one[state] for state in ("pending", "processing", "delayed")) for one in held),
        foreign,
        absent,
    )


def _differences(spark: "SparkSession", lake: Lake, open_ids: "DataFrame", found: "DataFrame") -> tuple[int, list[str]]:
    """Return how many messages of the queue the journal does not know, and some that should be there and are not."""
    both = open_ids.selectExpr("id", "1 as is_open").join(found.selectExpr("id", "date", "1 as is_held"), "id", "full")
    odd = both.where("is_open is null or is_held is null").persist()
    try:
        counts = odd.selectExpr(
            "count(is_held) as unknown", "count(is_open) as absent", "string(min(date)) as date"
        ).collect()[0]
        foreign = counts.unknown
        if counts.unknown:  # they may have left since, and then they ended on the day of the inventory or later
            left = lake.messages.read(spark, lake.queue, ("id",), lambda one: one.date >= counts.date)
            foreign -= (
                odd.where("is_held is not null and id is not null").join(left.distinct(), "id", "left_semi").count()
            )
        absent = (
            odd.where("is_open is not null").select("id").orderBy("id").limit(EXAMPLES).collect()
            if counts.absent
            else []
        )
        return foreign, [row.id for row in absent]
    finally:
        odd.unpersist()
