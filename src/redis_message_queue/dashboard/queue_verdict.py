"""Says in plain words what is wrong with a queue, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from redis_message_queue.dashboard.sample import LEASES, RECORDS, Sample
from redis_message_queue.protocol.operate.workers import CLAIM_SECONDS, about_workers, seconds_since_claim
from redis_message_queue.values.messages import MessageRecord
from redis_message_queue.values.wording import age, count, messages, one_line

_LATE_SECONDS = 5.0  # a consumer takes over what is due within milliseconds; a busy one within a lease renewal
_WAITING_SECONDS = 10.0  # a message that nobody claims for so long is stuck, if nothing else is in flight
_ENTRY_SECONDS = 12.0  # so old an entry of a worker may be
_QUIET_SECONDS = 60.0  # without a claim, while messages wait
_SLOW_SECONDS = 300.0  # a wait that is worth a warning although consumers work
_RECENT_SECONDS = 300.0  # failures younger than this are news
_GROWTH_SECONDS, _GROWTH, _GROWN_MESSAGES = 30.0, 1.2, 100


class Level(IntEnum):
    """How much attention a queue needs."""

    STUCK = 0
    WARNING = 1
    WORKING = 2
    IDLE = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a queue, and what to do about it."""

    level: Level
    text: str
    advice: str = ""
    source: str | None = None  # where to look: messages, schedules or tenants
    partition: int | None = None  # the one that it is about, if it is not the whole


def unreachable(error: str) -> Finding:
    """Return the finding for a queue that could not be read."""
    return Finding(Level.STUCK, f"Cannot be read: {one_line(error)}")


def findings(history: Sequence[Sample], among: Sequence[Sample] | None = None) -> list[Finding]:
    """Return what there is to say about a queue, the worst first, from its samples with the newest last.

    For a partition, ``among`` has the samples of the whole queue: its consumers serve other partitions meanwhile.
    """
    stuck = list(_paused(history[-1]) or _stuck(history, history if among is None else among))
    slow = [] if stuck and stuck[0].level <= Level.WARNING else _slow(history, among or history)  # that says it better
    found = sorted((*stuck, *slow, *_failures(history[-1])), key=lambda one: one.level)
    if not found or found[0].level > Level.WARNING:
        found.insert(0, _calm(history[-1]))
    return found


def _paused(now: Sample) -> list[Finding]:
    """Return that the queue is paused, which explains everything else that stands still."""
    if now.paused_at is None:
        return []
    stats = now.stats
    return [
        Finding(
            Level.WARNING,
            f"Paused for {age(max(0.0, now.at - now.paused_at))}: consumers claim nothing. {messages(stats.pending)} "
            f"waiting, {count(stats.processing)} in flight.",
            "Somebody paused this queue. Resume it here, or with rmq resume, when they agree.",
        )
    ]


_START = "Start a consumer of this queue."
_CONNECTED = "Look at the logs of these workers: other queues keep them busy, or they cannot claim here."
_SLOW_HANDLERS = "Handlers are slow or hang. Look at what they hold, and at the logs of these consumers."


def _stuck(history: Sequence[Sample], among: Sequence[Sample]) -> Iterator[Finding]:
    now = history[-1]
    overdue = [lease for lease in now.leases if lease.ends_at < now.at - _LATE_SECONDS]
    if overdue:
        number = f"{LEASES} or more" if len(overdue) == LEASES else count(len(overdue))
        are, them = ("is", "it") if len(overdue) == 1 else ("are", "them")
        yield Finding(
            Level.STUCK,
            f"{number} message{'s' if len(overdue) != 1 else ''} {are} in flight with no consumer renewing: the first "
            f"lease ended {age(now.at - overdue[0].ends_at)} ago, and no other consumer has taken over.",
            f"The consumer that claimed {them} has crashed or is cut off. {_START}",
            "processing",
        )
    if among is history:
        yield from _lost(now)
    waiting, oldest, quiet = now.stats.pending, now.oldest_seconds or 0.0, _quiet_seconds(among)
    in_flight, workers = among[-1].stats.processing, among[-1].workers.values()
    seen = _seconds_since_seen_claim(among)
    claims_seen = seen is not None and seen < CLAIM_SECONDS
    who = about_workers(workers, among[-1].at, busy=in_flight > 0, claims_seen=claims_seen)
    if now.paused_tenants:
        are = "tenant is" if now.paused_tenants == 1 else "tenants are"
        yield Finding(
            Level.WARNING,
            f"{count(now.paused_tenants)} {are} paused: consumers claim nothing of theirs. {messages(waiting)} "
            f"waiting in all, {count(now.stats.processing)} in flight.",
            "Resume them on the page of tenants, or with rmq resume --tenant, when those who paused them agree.",
            "tenants",
        )
    elif waiting and not in_flight and oldest >= _WAITING_SECONDS:
        yield Finding(
            Level.WARNING if claims_seen and not workers else Level.STUCK,
            f"{messages(waiting)} waiting, the oldest for {age(oldest)}, and none in flight: {who}.",
            _CONNECTED if workers else _START,
            "pending",
        )
    elif waiting and quiet >= _QUIET_SECONDS and not overdue:
        yield Finding(
            Level.STUCK,
            f"Oldest waiting {age(oldest)}, and no consumer claimed a message in the last {age(quiet)}: "
            f"the same {count(in_flight)} stay in flight; {who}.",
            _SLOW_HANDLERS if workers else f"Their consumers have crashed or hang. {_START}",
            "processing",
        )
    yield from _overdue(now)
    yield from _held_by_groups(now)
    if now.unleased and len(history) > 1 and min(one.unleased for one in history) > 0:
        held = now.at - history[0].at
        if held >= _QUIET_SECONDS:
            yield Finding(
                Level.WARNING,
                f"{messages(now.unleased)} in processing without a lease for at least {age(held)}.",
                "If their consumers have crashed, nothing returns them: purge the orphans.",
                "processing",
            )


def _lost(now: Sample) -> Iterator[Finding]:
    """Workers that are gone, and whose messages wait for the end of their leases."""
    held = [lease for lease in now.leases if lease.process in now.lost and lease.ends_at > now.at]
    if held:
        names = sorted({lease.consumer for lease in held})
        who = one_line(names[0], 80) if len(names) == 1 else f"{count(len(names))} workers"
        has = "is gone and holds" if len(names) == 1 else "are gone and hold"
        first = "its lease ends" if len(held) == 1 else "the first lease ends"
        yield Finding(
            Level.WARNING,
            f"{who} {has} {messages(len(held))}: {first} in {age(held[0].ends_at - now.at)}.",
            "It was killed or is cut off. Another consumer gets its messages when their leases end.",
            "processing",
        )


def _overdue(now: Sample) -> Iterator[Finding]:
    """Delayed messages and schedules whose time has come, and which nobody has served."""
    if now.first_due_at is not None and now.first_due_at < now.at - _LATE_SECONDS:
        yield Finding(
            Level.STUCK,
            f"Delayed messages are overdue, the first by {age(now.at - now.first_due_at)}: no consumer delivers them.",
            _START,
            "delayed",
        )
    if now.next_tick_at is not None and now.next_tick_at < now.at - _LATE_SECONDS:
        yield Finding(
            Level.STUCK,
            f"A schedule is overdue by {age(now.at - now.next_tick_at)}: its message was not published.",
            f"{_START} If one runs, its log says why it cannot publish.",
            "schedules",
        )


def _held_by_groups(now: Sample) -> Iterator[Finding]:
    """Consumer groups that hold messages and do not go on."""
    for group in now.groups:
        if group.messages and not group.has_query:
            yield Finding(
                Level.WARNING,
                f"Consumer group {one_line(group.name)} holds {messages(group.messages)}, and no query is running.",
                "Start the query with its checkpoint, or return the messages with rmq spark release.",
            )
        elif group.messages and now.at - group.since >= _SLOW_SECONDS:
            yield Finding(
                Level.WARNING,
                f"Consumer group {one_line(group.name)} holds {messages(group.messages)}, and its query has not "
                f"finished a batch for {age(now.at - group.since)}.",
                "Look at the query in the Spark UI: a task is slow, or it fails and is tried again.",
            )


def _slow(history: Sequence[Sample], among: Sequence[Sample]) -> Iterator[Finding]:
    first, now, in_flight = history[0], history[-1], among[-1].stats.processing
    if not in_flight:
        return
    oldest, seconds = now.oldest_seconds or 0.0, now.at - first.at
    grown = now.stats.pending - first.stats.pending
    if seconds >= _GROWTH_SECONDS and grown >= _GROWN_MESSAGES and now.stats.pending > _GROWTH * first.stats.pending:
        yield Finding(
            Level.WARNING,
            f"The backlog grows by {count(round(grown / seconds))} messages a second: {count(now.stats.pending)} wait, "
            f"the oldest for {age(oldest)}.",
            "Consumers are slower than publishers. Start more of them, or find out what slows them down.",
            "pending",
        )
    elif oldest >= _SLOW_SECONDS:
        yield Finding(
            Level.WARNING,
            f"The oldest message has waited for {age(oldest)}, although {count(in_flight)} are in flight.",
            "Consumers are behind. If one tenant has most of the backlog, its own messages wait longest.",
            "pending",
        )


def _failures(now: Sample) -> Iterator[Finding]:
    kinds = (("dead letter", "dead letters", "dead_letters"), ("failed message", "failed messages", "failed"))
    for one, several, source in kinds:
        records: tuple[MessageRecord, ...] = getattr(now, source)
        total = getattr(now.stats, source)
        recent = [record for record in records if _seconds_since(record, now.at) < _RECENT_SECONDS]
        if recent:
            number = f"{RECORDS} or more" if len(recent) == RECORDS else count(len(recent))
            why, times = Counter(map(_reason, recent)).most_common(1)[0]
            mostly = "" if times == len(recent) else "most often "
            kind = one if len(recent) == 1 else several
            yield Finding(
                Level.WARNING,
                f"{number} new {kind} in the last {age(_RECENT_SECONDS)}: {mostly}{why}.",
                "Read the error and the payload; redrive when the cause is fixed.",
                source,
            )
        elif total:
            newest = f", the newest {age(_seconds_since(records[0], now.at))} old" if records else ""
            text = f"{count(total)} {one if total == 1 else several}{newest}."
            if source == "failed":  # a list that the user wanted, which keeps what it has
                yield Finding(Level.WORKING, text, "", source)
            else:
                yield Finding(Level.WARNING, text, "Redrive them when the cause is fixed, or purge them.", source)


def _calm(now: Sample) -> Finding:
    stats = now.stats
    if stats.pending or stats.processing:
        oldest = "" if now.oldest_seconds is None else f", the oldest for {age(now.oldest_seconds)}"
        return Finding(
            Level.WORKING, f"Working: {count(stats.processing)} in flight, {count(stats.pending)} waiting{oldest}."
        )
    if stats.delayed:
        due = "" if now.first_due_at is None else f"; the next is due in {age(max(0.0, now.first_due_at - now.at))}"
        return Finding(Level.IDLE, f"Nothing to do now: {messages(stats.delayed)} delayed{due}.")
    return Finding(Level.IDLE, "Empty: nothing waits and nothing is in flight.")


def _quiet_seconds(history: Sequence[Sample]) -> float:
    """Return for how long nobody claimed a message while messages waited, as far as that is known.

    By when a connected worker last claimed, or by what was seen if somebody was seen to claim after that.
    """
    now = history[-1]
    since = now.at
    for before, after in zip(reversed(history[:-1]), reversed(history[1:]), strict=True):
        if not before.stats.pending or after.saw_claim:
            break
        since = before.at
    quiet, seen = now.at - since, _seconds_since_seen_claim(history)
    idle = seconds_since_claim(now.workers.values(), now.at)
    if idle is None or (seen is not None and seen < idle - _ENTRY_SECONDS):
        return quiet
    return min(idle, now.oldest_seconds or 0.0)


def _seconds_since_seen_claim(history: Sequence[Sample]) -> float | None:
    """Return how long ago somebody was seen to claim, None if that was not seen."""
    return next((history[-1].at - one.at for one in reversed(history) if one.saw_claim), None)


def _seconds_since(record: MessageRecord, at: float) -> float:
    return float("inf") if record.finished_at is None else max(0.0, at - record.finished_at.timestamp())


def _reason(record: MessageRecord) -> str:
    if record.error_type:
        return one_line(f"{record.error_type}: {record.error}" if record.error else record.error_type)
    return one_line(record.reason or "no reason recorded")
