"""Proves from ledgers, journals and what is left in Redis that the queues kept their promises, or names what broke.

Everything here is a pure function of evidence, so that tests can plant violations and see them found.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from chaos.evidence import Evidence, JournalEntry, QueueEvidence, load
from chaos.inventory import check_keys
from chaos.ledger import Entry, read_ledgers
from chaos.scenario import TICK_KEY
from redis_message_queue.stored.partitioning import partition_of

# Where a campaign keeps its ledgers, and what the checker has to know about it.
LEDGERS, RULES_FILE = "ledgers", "rules.json"
ENDS = frozenset({"acked", "failed", "dead", "expired", "handed_off", "dropped", "cancelled"})
_CLAIMS = frozenset({"claimed", "reclaimed"})
# A server's clock may differ by this much between two readings of one script and its expiry, in seconds.
_CLOCK_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which rule, where, and what was found."""

    rule: str
    queue: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.queue}): {self.found}"


@dataclass
class Publish:
    """One publish of one message, as its producer knows it."""

    queue: str
    key: str
    began: float
    deduplication: str | None
    outcome: str = "none"  # confirmed, suppressed, refused, unknown, or none: killed before it had one
    ended: float | None = None
    partition_key: str | None = None


@dataclass
class Verdict:
    """What was checked, how often, and what was broken."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the checker has to know about the campaign."""

    window_seconds: float
    losses: Sequence[tuple[float, float]] = ()  # when confirmed writes to the replicated server may be lost
    lease_seconds: float = 0.0

    def may_be_lost(self, queue: QueueEvidence, at: float | None) -> bool:
        """Whether a write of this time to this queue may have been lost with its server."""
        return queue.place.place == "replicated" and any(
            began - _CLOCK_TOLERANCE <= (at or 0) <= ended + _CLOCK_TOLERANCE for began, ended in self.losses
        )


def check_directory(directory: Path) -> Verdict:
    """Check a campaign again, from what it has left in its directory."""
    rules = Rules(**json.loads((directory / RULES_FILE).read_text()))
    return check(read_ledgers(directory / LEDGERS), load(directory), rules)


def check(ledger: Sequence[Entry], evidence: Evidence, rules: Rules) -> Verdict:
    """Check every rule."""
    verdict = Verdict()
    published, deliveries = publishes(ledger), _deliveries(ledger)
    by_name = {queue.place.name: queue for queue in evidence.queues}
    for name, queue in by_name.items():
        mine = [one for one in published if one.queue == name]
        told = [entry for entry in deliveries if entry["queue"] == name]
        source = next((one for one in evidence.queues if one.place.results == name), None)
        for found in (
            check_serials(queue),
            check_publishes(queue, mine, source, rules, verdict.counts),
            check_places(queue, verdict.counts),
            check_lists(queue),
            check_window(queue, rules),
            check_settlements(queue, told, rules, verdict.counts),
            check_fairness(queue, verdict.counts),
            check_in_flight(queue, rules),
            check_order(queue, verdict.counts),
            check_ticks(queue, verdict.counts),
            check_partitions(queue, mine, verdict.counts),
            check_results(queue, by_name.get(queue.place.results or ""), verdict.counts),
            check_sink(queue, evidence.sink.get(name)),
        ):
            verdict.violations += found
    verdict.violations += [
        Violation("nothing is left but what the design says", "", found)
        for found in check_keys(
            evidence.keys, [prefix for queue in evidence.queues for prefix in queue.place.key_prefixes]
        )
    ]
    return verdict


def publishes(ledger: Iterable[Entry]) -> list[Publish]:
    """Join each intent with its outcome."""
    calls: dict[tuple[str, int], list[Publish]] = {}
    for entry in ledger:
        do = entry["do"]
        if do == "intent":
            calls[entry["who"], entry["call"]] = [
                Publish(entry["queue"], key, entry["t"], entry.get("d"), partition_key=entry.get("partition_key"))
                for key in entry["keys"]
            ]
        elif do in ("confirmed", "refused", "unknown"):
            call = calls[entry["who"], entry["call"]]
            results = entry.get("results", [None] * len(call))
            for one, result in zip(call, results, strict=True):
                one.outcome = {None: do, True: "confirmed", False: "suppressed"}[result]
                one.ended = entry["t"]
    return [one for call in calls.values() for one in call]


def _deliveries(ledger: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in ledger if entry["do"] in ("claimed", "handling", "handled", "settled")]


# Each rule


def _keys_of(queue: QueueEvidence) -> dict[str, str]:
    """The key of each message that was published, by its id."""
    return {entry.id: str(entry.key) for entry in queue.journal if entry.event == "published"}


def check_serials(queue: QueueEvidence) -> Iterator[Violation]:
    """The journal has no gap: its numbers are 1, 2, 3, …"""
    for journal in queue.journals:
        for place, entry in enumerate(journal, 1):
            if entry.n != place:
                yield Violation("the journal has no gap", queue.place.name, f"entry {place} has the number {entry.n}")
                return


def check_publishes(
    queue: QueueEvidence,
    published: Sequence[Publish],
    source: QueueEvidence | None,
    rules: Rules,
    counts: Counter[str],
) -> Iterator[Violation]:
    """Every confirmed publish is stored once; refused and suppressed ones never; and nothing was invented."""
    rule, name = "every confirmed publish is stored once", queue.place.name
    stored = Counter(entry.key for entry in queue.journal if entry.event == "published" and entry.tick is None)
    duplicates = {entry.of for entry in queue.journal if entry.event == "duplicate"}
    known = {entry.id for entry in queue.journal if entry.event == "published"}
    for one in published:
        times = stored.pop(one.key, 0)
        counts[f"publishes {one.outcome}"] += 1
        if (
            one.outcome == "confirmed"
            and times == 0
            and not queue.place.confirms
            and rules.may_be_lost(queue, one.ended)
        ):
            counts["confirmed publishes lost with a stale failover"] += 1
        elif one.outcome == "confirmed" and times != 1:
            yield Violation(rule, name, f"{one.key} was confirmed and is stored {times} times")
        elif one.outcome in ("refused", "suppressed") and times:
            yield Violation(rule, name, f"{one.key} was {one.outcome} and is stored {times} times")
        elif times > 1:
            yield Violation(rule, name, f"{one.key} is stored {times} times")
    results = {f"of {entry.key}" for entry in source.journal if entry.event == "published"} if source else set()
    for key in stored:
        if key not in results:
            yield Violation(rule, name, f"{key} is stored, and nobody published it")
    for first in duplicates - known - {None, ""}:
        yield Violation(rule, name, f"a publish was suppressed because of {first}, which was never stored")


def check_places(queue: QueueEvidence, counts: Counter[str]) -> Iterator[Violation]:
    """Every stored message has ended once, or is in Redis once."""
    rule, name = "every message is in exactly one place", queue.place.name
    in_redis = Counter([*queue.waiting, *queue.processing, *queue.delayed])
    ended: dict[str, str] = {}
    published = {entry.id for entry in queue.journal if entry.event == "published"}
    for entry in queue.journal:
        if entry.event == "duplicate":
            continue
        if entry.id in ended:
            yield Violation(rule, name, f"{entry.id} was {ended[entry.id]} and is {entry.event} afterwards")
        elif entry.id not in published:
            yield Violation(rule, name, f"{entry.id} is {entry.event} and was never published")
        elif entry.event in ENDS:
            ended[entry.id] = entry.event
            counts[f"messages {entry.event}"] += 1
    for message in published:
        places = in_redis.pop(message, 0) + (message in ended)
        if places != 1:
            yield Violation(rule, name, f"{message} is in {places} places")
    for message in in_redis:
        yield Violation(rule, name, f"{message} is in Redis and was never published")
    counts["messages left in Redis"] += len(published) - len(ended)


def check_lists(queue: QueueEvidence) -> Iterator[Violation]:
    """The completed list and the dead letters hold what the journal says, each once."""
    keys = _keys_of(queue)
    for what, events, found in (
        ("completed", {"acked", "handed_off"}, queue.completed),
        ("dead letters", {"dead", "expired"}, queue.dead_letters),
    ):
        if queue.place.name == "events" and what == "completed":
            continue  # a streaming query keeps its messages in its sink
        told = Counter(keys.get(entry.id, entry.id) for entry in queue.journal if entry.event in events)
        for key in (told - found) | (found - told):
            times = f"{found[key]} times in the list and {told[key]} times in the journal"
            yield Violation("the lists agree with the journal", queue.place.name, f"{what}: {key} is {times}")


def check_window(queue: QueueEvidence, rules: Rules) -> Iterator[Violation]:
    """No two messages with one deduplication key, for one tenant, were stored within a window.

    By the server's clock, which the nemesis steps. A window that has passed stays so when the clock is stepped back.
    """
    last: dict[tuple[str, str], JournalEntry] = {}
    latest: dict[tuple[str, str], float] = {}  # the latest time that the server had since the last one was stored
    for entry in queue.journal:
        for key, at in latest.items():
            latest[key] = max(at, entry.at)
        if entry.event != "published" or entry.deduplication is None:
            continue
        key = entry.deduplication, entry.tenant
        passed = latest[key] - last[key].at if key in last else rules.window_seconds
        if passed < rules.window_seconds - _CLOCK_TOLERANCE:
            found = f"{last[key].id} and {entry.id}, {passed:.3f} s apart"
            yield Violation("no duplicate within a window", queue.place.name, f"{entry.deduplication}: {found}")
        last[key], latest[key] = entry, entry.at


@dataclass
class _Life:
    """What the journal tells of one message."""

    claims: int = 0
    requeues: int = 0
    settled: list[tuple[str, int, int]] = field(default_factory=list)  # event, claims and requeues before it


_SETTLED_AS = {"acked": {"acked", "handed_off"}, "handed_off": {"handed_off"}, "failed": {"failed", "dead"}}


def _lives(journal: Iterable[JournalEntry]) -> dict[str, _Life]:
    lives: defaultdict[str, _Life] = defaultdict(_Life)
    for entry in journal:
        life = lives[entry.id]
        if entry.event in _CLAIMS:
            life.claims += 1
        elif entry.event in ENDS or entry.event in ("retried", "requeued"):
            life.settled.append((entry.event, life.claims, life.requeues))
            life.requeues += entry.event == "requeued"
    return lives


def check_settlements(
    queue: QueueEvidence, told: Sequence[Entry], rules: Rules, counts: Counter[str]
) -> Iterator[Violation]:
    """Only the consumer of the latest claim settled a message, and only after it had handled it."""
    rule, name = "no settlement by a lost lease", queue.place.name
    lives = _lives(queue.journal)
    handling, handled = _first_by_lease(told, "handling"), _first_by_lease(told, "handled")
    settled = [entry for entry in told if entry["do"] == "settled"]
    counts["deliveries"] += len(handling)
    counts["settlements refused because the lease was lost"] += sum(entry["how"] == "stale" for entry in settled)
    seen: Counter[tuple[str, str]] = Counter()
    for entry in settled:
        began = handling.get(entry["lease"])
        if entry["how"] == "stale" or began is None or rules.may_be_lost(queue, entry["t"]):
            continue
        wanted = _SETTLED_AS.get(entry["how"], {entry["how"]})
        matching = [one for one in lives[entry["id"]].settled if one[0] in wanted]
        seen[entry["id"], entry["how"]] += 1
        if seen[entry["id"], entry["how"]] > len(matching):
            yield Violation(rule, name, f"{entry['who']} has {entry['how']} {entry['id']}, and the journal has not")
        # A claim that no handler saw is given back, and its attempt with it: then the number is only a bound.
        elif not any(claims - requeues <= began["attempt"] <= claims for _, claims, requeues in matching):
            at = f"attempt {began['attempt']}, and the journal has {[claims for _, claims, _ in matching]} claims"
            yield Violation(rule, name, f"{entry['who']} has {entry['how']} {entry['id']} of {at}")
    yield from _overtaken(queue, settled, handling, handled, rules)
    if queue.place.name != "events":
        yield from _unhandled(queue, lives, handled.values(), _claims_by_process(told))


def _first_by_lease(told: Iterable[Entry], do: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in told:
        if entry["do"] == do:
            found.setdefault(entry["lease"], entry)
    return found


def _overtaken(
    queue: QueueEvidence,
    settled: Iterable[Entry],
    handling: dict[str, Entry],
    handled: dict[str, Entry],
    rules: Rules,
) -> Iterator[Violation]:
    """Whoever had seen its message go to a later claim before it settled it."""
    by_message: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in handling.values():
        by_message[entry["id"]].append(entry)
    for entry in settled:
        mine, done = handling.get(entry["lease"]), handled.get(entry["lease"])
        if entry["how"] not in ("acked", "handed_off") or mine is None or done is None:
            continue
        for other in by_message[entry["id"]]:
            later = other["attempt"] > mine["attempt"] and mine["t"] < other["t"] < done["t"]
            # A claim that was lost with its server never took the message from anyone.
            if later and not rules.may_be_lost(queue, other["t"]) and not rules.may_be_lost(queue, entry["t"]):
                found = f"{entry['who']} has {entry['how']} {entry['id']} after {other['who']} had begun with it"
                yield Violation("no settlement by a lost lease", queue.place.name, found)


def _claims_by_process(told: Iterable[Entry]) -> dict[tuple[str, str], set[str]]:
    """The leases that a process has had of a message."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in told:
        if entry["do"] in ("claimed", "handling"):
            found[entry["who"], entry["id"]].add(entry["lease"])
    return found


def _unhandled(
    queue: QueueEvidence,
    lives: dict[str, _Life],
    handled: Iterable[Entry],
    leases: dict[tuple[str, str], set[str]],
) -> Iterator[Violation]:
    """Messages that were acknowledged although no handler had finished them.

    A loop that gets a message again while it still works on it goes on under the new lease: then a process has had
    several leases of it, and its handler was called for the first one only.
    """
    finished: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in handled:
        finished[entry["id"]].append(entry)
    for message, life in lives.items():
        for event, claims, requeues in life.settled:
            if event in ("acked", "handed_off") and not any(
                claims - requeues <= one["attempt"] <= claims
                or (one["attempt"] < claims and len(leases.get((one["who"], message), ())) > 1)
                for one in finished[message]
            ):
                found = f"{message} is {event} after {claims} claims, and no handler had finished that delivery"
                yield Violation("only handled messages are acknowledged", queue.place.name, found)


def check_fairness(queue: QueueEvidence, counts: Counter[str]) -> Iterator[Violation]:
    """While a tenant waits, no other tenant is served twice.

    Only what the journal shows counts as waiting: messages that became due or whose lease ran out have no entry.
    """
    if queue.place.most_in_flight is not None or queue.place.ordered:
        return  # a tenant at its limit waits while others are served
    for journal in queue.journals:
        yield from _turns_out_of_order(queue.place.name, journal, counts)


def _turns_out_of_order(name: str, journal: Sequence[JournalEntry], counts: Counter[str]) -> Iterator[Violation]:
    ready: Counter[str] = Counter()
    delayed = {entry.id for entry in journal if entry.event == "delayed"}
    certain: set[str] = set()  # ids that wait in their tenant's queue for certain
    served: defaultdict[str, Counter[str]] = defaultdict(Counter)  # tenant that waits: how often others were served
    for entry in journal:
        if (entry.event == "published" and entry.id not in delayed) or entry.event == "requeued":
            certain.add(entry.id)
            ready[entry.tenant] += 1
        elif entry.event in _CLAIMS:
            if entry.id in certain:
                certain.discard(entry.id)
                ready[entry.tenant] -= 1
            served.pop(entry.tenant, None)
            for tenant in ready:
                if ready[tenant] > 0 and tenant != entry.tenant:
                    served[tenant][entry.tenant] += 1
                    counts["turns checked for fairness"] += 1
                    times = served[tenant][entry.tenant]
                    if times > 1:
                        found = f"{entry.tenant or 'no tenant'} was served {times} times while {tenant or 'no tenant'}"
                        yield Violation("fairness", name, f"{found} waited, at entry {entry.n}")
        elif entry.event in ENDS and entry.id in certain:
            certain.discard(entry.id)
            ready[entry.tenant] -= 1


def check_in_flight(queue: QueueEvidence, rules: Rules) -> Iterator[Violation]:
    """No tenant had more messages in flight than its limit.

    Renewals have no entry. So only a claim that is younger than a lease counts as one that holds its message.
    """
    limit = queue.place.most_in_flight
    claimed: defaultdict[tuple[int, str], dict[str, float]] = defaultdict(dict)  # when each message was claimed
    for entry in queue.journal:
        held = claimed[entry.partition, entry.tenant]
        if entry.event not in _CLAIMS:
            held.pop(entry.id, None)
        elif entry.tenant and limit is not None:
            held[entry.id] = entry.at
            times = [at for at in held.values() if entry.at - at < rules.lease_seconds - _CLOCK_TOLERANCE]
            if len(times) > limit:
                found = f"{entry.tenant} has {len(times)} messages in flight at entry {entry.n}, its limit is {limit}"
                yield Violation("no tenant exceeds its limit in flight", queue.place.name, found)


def check_order(queue: QueueEvidence, counts: Counter[str]) -> Iterator[Violation]:
    """No message of a tenant was delivered while an earlier one had not ended. Delayed ones come when they are due."""
    delayed = {entry.id for entry in queue.journal if entry.event == "delayed"}
    unended: defaultdict[tuple[int, str], dict[str, None]] = defaultdict(dict)  # ids in the order of their publishes
    for entry in queue.journal:
        ids = unended[entry.partition, entry.tenant]
        if not queue.place.ordered or not entry.tenant or entry.id in delayed:
            continue
        if entry.event == "published":
            ids[entry.id] = None
        elif entry.event in ENDS:
            ids.pop(entry.id, None)
        elif entry.event in _CLAIMS:
            counts["deliveries in the order of their tenant"] += 1
            first = next(iter(ids), entry.id)
            if first != entry.id:
                found = f"{entry.id} of {entry.tenant} was claimed at entry {entry.n}, and {first} was before it"
                yield Violation("the messages of a tenant are handled in order", queue.place.name, found)


def check_ticks(queue: QueueEvidence, counts: Counter[str]) -> Iterator[Violation]:
    """A schedule published one message for each of its times, from the first to the last."""
    rule, every = "each tick is published once", queue.place.tick_seconds
    published = [entry for entry in queue.journal if entry.event == "published" and entry.tick is not None]
    ticks = sorted(datetime.fromisoformat(str(entry.tick)) for entry in published)
    counts["ticks of schedules"] += len(ticks)
    for entry in published:
        if every is None or entry.key != TICK_KEY:
            yield Violation(rule, queue.place.name, f"{entry.id} is the tick of a schedule that nobody defined")
    for earlier, later in pairwise(ticks):
        if (later - earlier).total_seconds() != every:
            yield Violation(rule, queue.place.name, f"{later} follows {earlier}, and every {every} s is one due")


def check_partitions(queue: QueueEvidence, published: Iterable[Publish], counts: Counter[str]) -> Iterator[Violation]:
    """A message is in the partition that its key names."""
    stored = {entry.key: entry.partition for entry in queue.journal if entry.event == "published"}
    for one in published:
        if one.partition_key is not None and one.key in stored and queue.place.partitions > 1:
            counts["messages found in the partition of their key"] += 1
            wanted = partition_of(one.partition_key, queue.place.partitions)
            if stored[one.key] != wanted:
                found = f"{one.key} is in partition {stored[one.key]}, its key {one.partition_key} names {wanted}"
                yield Violation("a key names its partition", queue.place.name, found)


def check_results(queue: QueueEvidence, results: QueueEvidence | None, counts: Counter[str]) -> Iterator[Violation]:
    """A message that was handed off has its result in the other queue, and no other message has."""
    if results is None:
        return
    keys = _keys_of(queue)
    handed_off = Counter(f"of {keys.get(entry.id)}" for entry in queue.journal if entry.event == "handed_off")
    arrived = Counter(_keys_of(results).values())
    counts["hand-offs"] += handed_off.total()
    for key in (handed_off - arrived) | (arrived - handed_off):
        times = f"handed off {handed_off[key]} times and published {arrived[key]} times"
        yield Violation("a hand-off happens as a whole", queue.place.name, f"{key} was {times}")


def check_sink(queue: QueueEvidence, written: Counter[str] | None) -> Iterator[Violation]:
    """What a Spark query has acknowledged is in its files once, and nothing else is."""
    if written is None:
        return
    keys = _keys_of(queue)
    acked = Counter(keys.get(entry.id, entry.id) for entry in queue.journal if entry.event == "acked")
    for key in (acked - written) | (written - acked):
        times = f"acknowledged {acked[key]} times and written {written[key]} times"
        yield Violation("the sink has every message once", queue.place.name, f"{key} is {times}")
