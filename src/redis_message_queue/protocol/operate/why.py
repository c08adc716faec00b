"""Explains why a message is not done, or what became of it, from what a queue and its journal know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis_message_queue.protocol.operate.pages import PAGE, members_with_scores
from redis_message_queue.protocol.operate.part_operator import PartOperator
from redis_message_queue.protocol.operate.record_pairs import single_record
from redis_message_queue.protocol.operate.trace import JournalPart, MessageLocation, check_id
from redis_message_queue.protocol.operate.workers import CLAIMS, about_workers, seconds_of
from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import process_of, tenant_text
from redis_message_queue.stored.scripts import constant
from redis_message_queue.values.messages import ConnectedWorker, Explanation, MessageRecord, TraceEntry, moment
from redis_message_queue.values.wording import age, count, one_line, when

MOST_MESSAGES = 10_000  # that are counted before a message, records and entries of the journal that are searched
_MOST_BYTES = 32 * 1024 * 1024
_HOLDERS = 1_000  # leases among which those of a tenant are searched
_PARKED = constant("places", "PARKED")
# The events that end a message: the word for programs, and what a sentence says.
_ENDS = {
    "acked": ("acknowledged", "it was acknowledged"),
    "handed_off": ("acknowledged", "it was acknowledged"),
    "failed": ("failed", "it failed for good"),
    "dead": ("dead_letter", "it went to the dead letters, and is not there any more"),
    "expired": ("expired", "it expired"),
    "discarded": ("discarded", "its handler discarded it"),
    "dropped": ("dropped", "it was dropped to make room"),
    "cancelled": ("cancelled", "it was cancelled"),
    "duplicate": ("duplicate", "it was suppressed as a duplicate"),
}
_LISTS = {
    "dead_letters": ("dead_letter", "it is in the dead letters"),
    "failed": ("failed", "it is in the failed list"),
    "completed": ("acknowledged", "it was acknowledged"),
}
_REASONS = {
    "deliveries": "it was delivered too often",
    "attempts used up": "its attempts are used up",
    "expired": "it waited longer than its time to live",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """What an explanation says, before it has the id of its message."""

    cause: str
    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a part has beside a message at one time, by the server's clock."""

    at: float
    paused_at: float | None
    tenant_paused_at: float | None
    turn: float | None  # the tenant's place in virtual time, None if it is not in the ring
    before: int  # tenants that come first
    returned: int  # messages of the tenant whose leases ran out: they come first
    processing: int
    workers: Mapping[str, ConnectedWorker]
    claims_seen: bool

    @property
    def about_workers(self) -> str:
        return about_workers(self.workers.values(), self.at, busy=self.processing > 0, claims_seen=self.claims_seen)

    @property
    def is_deserted(self) -> bool:
        """Whether nobody claims."""
        return not self.workers and not self.claims_seen

    def since(self, at: float) -> float:
        return max(0.0, self.at - at)


class Explainer:
    """Looks at all parts of a queue, in bounded steps."""

    def __init__(self, operators: Sequence[PartOperator]) -> None:
        self._operators = operators

    async def explain(self, message_id: str) -> Explanation:
        """Return why a message is not done, or what became of it."""
        message_id = check_id(message_id).hex()
        is_whole = True
        for number, part in enumerate(self._operators):
            location, searched = await part.finder.locate(message_id, MOST_MESSAGES, _MOST_BYTES)
            is_whole = is_whole and searched
            if location is not None:
                answer = await self._of_location(part, location, message_id)
                if len(self._operators) > 1:
                    answer = replace(answer, facts={"partition": number} | dict(answer.facts))
                break
        else:
            answer = await self._of_gone(message_id, is_whole)
        return Explanation(id=message_id, cause=answer.cause, sentence=answer.sentence, facts=answer.facts)

    async def _of_location(self, part: PartOperator, location: MessageLocation, message_id: str) -> Reason:
        around = await self._look_around(part, location.tenant)
        history = await _history(part, message_id)
        facts = _facts_of(location.record)
        if location.record.state == "pending":
            answer = await self._of_waiting(part, location, around)
        elif location.record.state == "delayed":
            due = location.record.due_at
            answer = _of_delayed(location, around, history, due.timestamp() if due else around.at)
        else:
            answer = await self._of_held(part, location, around, history)
        return replace(answer, facts=facts | dict(answer.facts) | {"workers": len(around.workers)})

    async def _look_around(self, part: PartOperator, tenant: bytes) -> Surroundings:
        keys, pages = part.pages.keys, part.pages
        (
            (seconds, microseconds),
            (paused, tenant_paused),
            turn,
            before,
            returned,
            processing,
        ) = await pages.send(
            ("TIME",),
            ("HMGET", keys.meta, "paused", b"paused:" + tenant),
            ("ZSCORE", keys.tenant_ring, tenant),
            ("ZRANK", keys.tenant_ring, tenant),
            ("ZCARD", keys.expired("").encode() + tenant),
            ("HLEN", keys.processing),
        )
        now_us = int(seconds) * 1_000_000 + int(microseconds)
        workers = await self._operators[0].workers.by_process(now_us)
        at = now_us / 1e6
        saw_claims = not workers and any([await one.workers.saw_claim(at) for one in self._operators])
        return Surroundings(
            at=at,
            paused_at=seconds_of(paused),
            tenant_paused_at=seconds_of(tenant_paused) if tenant else None,
            turn=None if turn is None else float(turn),
            before=before or 0,
            returned=returned,
            processing=processing,
            workers=workers,
            claims_seen=saw_claims,
        )

    # -- in the queue

    async def _of_waiting(self, part: PartOperator, location: MessageLocation, around: Surroundings) -> Reason:
        """Say what a message waits for that any consumer could claim."""
        name = one_line(tenant_text(location.tenant)) if location.tenant else None
        ahead = location.ahead + around.returned
        behind, facts = _behind(name, str(ahead), ahead, around), {"ahead": ahead}
        if location.record.cancelled:
            return Reason("cancelled", "it is cancelled: the claim that meets it drops it", facts)
        if stopped := _paused(around, name):
            return replace(stopped, sentence=f"{stopped.sentence}; {behind}", facts=facts | dict(stopped.facts))
        if name is not None and around.turn is not None and _PARKED <= around.turn < 2 * _PARKED:
            limited = await self._of_limited(part, location.tenant, name, around)
            return replace(limited, sentence=f"{limited.sentence}; {behind}", facts=facts | dict(limited.facts))
        if around.is_deserted:
            return Reason("no_worker", f"{around.about_workers}; {behind}", facts)
        return Reason("waiting", f"{behind}; {around.about_workers}", facts | {"tenants_before": around.before})

    async def _of_limited(self, part: PartOperator, tenant: bytes, name: str, around: Surroundings) -> Reason:
        """Say who holds the messages of a tenant that must not have more in flight."""
        keys, pages = part.pages.keys, part.pages
        first = bytes((len(tenant),)) + tenant
        flights, leases = await pages.send(
            ("ZRANGE", keys.tenant_in_flight, b"[" + first, b"(" + first + b"\xff" * 17, "BYLEX", "LIMIT", 0, PAGE),
            ("ZRANGE", keys.leases, 0, _HOLDERS - 1, "WITHSCORES"),
        )
        ids = {flight[-envelope.ID_BYTES :] for flight in flights}
        held = [
            (token, float(end) / 1e6)
            for token, end in members_with_scores(leases)
            if len(token) == envelope.TOKEN_BYTES and token[: envelope.ID_BYTES] in ids
        ]
        retries = [end for token, end in held if envelope.holds_place_of_retry(token)]
        if retries:
            due = retries[0] - around.at
            when = f"due in {age(due)}" if due > 0 else f"overdue by {age(-due)}"
            text = f"an earlier message of {name} waits for its next attempt, {when}, and its messages keep their order"
            return Reason("tenant_limit", text, {"in_flight": len(ids), "next_attempt": moment(retries[0])})
        names = await pages.consumers(process_of(token) for token, _ in held)
        holders = Counter(names.get(process_of(token), "a consumer") for token, _ in held)
        whole = {1: "", 2: "both "}.get(len(ids), "all ")
        who = ", ".join(
            f"{whole if len(holders) == 1 and total == len(ids) else f'{total} '}held by {one_line(holder, 80)}"
            for holder, total in holders.most_common(3)
        )
        details = [detail for detail in (who, await self._holding(part, held, around)) if detail]
        text = f"{name} is at its limit of {len(ids)} in flight{', ' if details else ''}{', '.join(details)}"
        return Reason("tenant_limit", text, {"in_flight": len(ids), "holders": dict(holders)})

    async def _holding(self, part: PartOperator, held: Sequence[tuple[bytes, float]], around: Surroundings) -> str:
        """Say for how long the message whose lease ends first is held, and when that was renewed."""
        if not held:
            return ""
        token, ends = held[0]
        claimed = _last(await _history(part, token[: envelope.ID_BYTES].hex()), CLAIMS)
        since = "" if claimed is None or claimed.at is None else f"for {age(around.since(claimed.at.timestamp()))}, "
        return since + _lease_words(around, token, ends, "leases" if len(held) > 1 else "its lease")

    async def _of_held(
        self, part: PartOperator, location: MessageLocation, around: Surroundings, history: Sequence[TraceEntry]
    ) -> Reason:
        token, record = location.token, location.record
        (end,) = await part.pages.send(("ZSCORE", part.pages.keys.leases, token or b""))
        ends = None if end is None else float(end) / 1e6
        if token is not None and envelope.holds_place_of_retry(token):
            return _of_delayed(location, around, history, ends or around.at)
        consumer = one_line(record.consumer or "a consumer", 80)
        if token is None or (ends is not None and ends <= around.at):
            ended = "" if ends is None else f" {age(around.since(ends))} ago"
            stopped = _paused(around, record.tenant)
            reason = stopped.sentence if stopped else around.about_workers
            text = f"its lease ended{ended}, and no consumer has claimed it again: {reason}"
            return Reason("lease_ended", text, {"consumer": record.consumer})
        claimed = _last(history, CLAIMS)
        since = claimed.at.timestamp() if claimed is not None and claimed.at is not None else None
        for_long = "has it" if since is None else f"has had it for {age(around.since(since))}"
        facts: dict[str, Any] = {"consumer": record.consumer}
        facts |= {} if claimed is None else {"claimed_at": claimed.at}
        delivery = "" if (record.delivery_count or 0) < 2 else f", in delivery {record.delivery_count}"
        if ends is None:
            return Reason("in_flight", f"{consumer} {for_long}{delivery}, without a lease", facts)
        text = f"{consumer} {for_long}{delivery}, {_lease_words(around, token, ends)}"
        if process_of(token).hex() not in around.workers:
            text += "; it is not among the connected workers: if it has crashed, the message comes back then"
        return Reason("in_flight", text, facts | {"lease_ends": moment(ends)})

    # -- not in the queue

    async def _of_gone(self, message_id: str, is_whole: bool) -> Reason:
        for part in self._operators:
            if (answer := await _recorded(part, message_id)) is not None:
                return answer
        reached, is_searched = [], True
        for part in self._operators:
            journal = await _journal(part, message_id)
            if journal.entries:
                return await self._of_history(part, message_id, [entry for _, entry in journal.entries], is_whole)
            is_searched = is_searched and journal.is_whole
            if journal.reached is not None:
                reached.append(int(journal.reached.partition(b"-")[0]) / 1000)
        begins = min(reached, default=None)
        where = "in the queue" if is_whole else f"among the first {count(MOST_MESSAGES)} that wait"
        if begins is None:
            text = f"no such message is {where}, and without a journal nothing is known of messages that have left"
            return Reason("unknown", text, {"journal_begins": None})
        entries = "in its journal" if is_searched else f"among the newest {count(MOST_MESSAGES)} entries of its journal"
        text = f"no such message is {where}, nor {entries}"
        return Reason(
            "unknown", f"{text}, which goes back to {when(moment(begins))}", {"journal_begins": moment(begins)}
        )

    async def _of_history(
        self, part: PartOperator, message_id: str, history: Sequence[TraceEntry], is_whole: bool
    ) -> Reason:
        """Say how a message ended by its journal, or what was its last event."""
        last = history[-1]
        facts: dict[str, Any] = {"last_event": last.event, "at": last.at, "consumer": last.consumer} | dict(
            last.details
        )
        if last.event in _ENDS:
            cause, text = _ENDS[last.event]
            claimed = _last(history, CLAIMS)
            consumer = last.consumer or (claimed.consumer if claimed else None)
            by = f" by {one_line(consumer, 80)}" if consumer and cause == "acknowledged" else ""
            of = f" of {last.details['of']}" if "of" in last.details else ""
            why = last.details.get("error_type") or _reason(last.details.get("reason"))
            because = f" because of {one_line(why)}" if why and cause in ("failed", "dead_letter") else ""
            facts |= {"consumer": consumer}
            return Reason(cause, f"{text}{of}{by} at {when(last.at)}{because}", facts)
        if not is_whole and last.event not in CLAIMS:
            tenant = (last.tenant or "").encode()
            location, _ = await part.finder.locate(message_id, MOST_MESSAGES, _MOST_BYTES, tenant)
            if location is not None:
                return await self._of_location(part, location, message_id)
            around = await self._look_around(part, tenant)
            name = one_line(last.tenant) if last.tenant else None
            behind = _behind(name, f"more than {count(MOST_MESSAGES)}", MOST_MESSAGES, around)
            stopped = _paused(around, name)
            reason = stopped.sentence if stopped else around.about_workers
            cause = stopped.cause if stopped else "no_worker" if around.is_deserted else "waiting"
            return Reason(cause, f"{behind}; {reason}", facts)
        text = f"it is not in the queue, and the last that the journal tells is {last.event} at {when(last.at)}"
        hint = ": a streaming query may hold it" if last.event in CLAIMS else ""
        return Reason("unknown", text + hint, facts)


def _of_delayed(location: MessageLocation, around: Surroundings, history: Sequence[TraceEntry], due: float) -> Reason:
    """Say until when a message is delayed, or after which error its next attempt comes."""
    left, facts = due - around.at, {"due_at": moment(due)}
    failed = _last(history, ("retried",))
    after = f" after {one_line(failed.details['error_type'])}" if failed and "error_type" in failed.details else ""
    what = f"its {_ordinal(location.failures)} retry" if location.failures else "it"
    if left > 0:
        if location.failures:
            return Reason("retry", f"{what} is due in {age(left)}{after}", facts | {"failures": location.failures})
        return Reason("delayed", f"it is delayed until {when(moment(due))}, for another {age(left)}", facts)
    stopped = _paused(around, location.record.tenant)
    reason = stopped.sentence if stopped else around.about_workers
    text = f"{what} has been due for {age(-left)}{after}, and no consumer has delivered it: {reason}"
    return Reason(stopped.cause if stopped else "no_worker" if around.is_deserted else "overdue", text, facts)


def _paused(around: Surroundings, tenant: str | None) -> Reason | None:
    """Say that the queue or the tenant is paused, if so."""
    for cause, whose, at in (
        ("paused", "the queue", around.paused_at),
        ("tenant_paused", f"tenant {tenant}", around.tenant_paused_at),
    ):
        if at is not None:
            text = f"{whose} is paused since {when(moment(at))}, for {age(around.since(at))}"
            return Reason(cause, text, {"paused_at": moment(at)})
    return None


def _behind(tenant: str | None, number: str, ahead: int, around: Surroundings) -> str:
    """Say what comes before a message: others of its tenant, and the turns of other tenants."""
    others = f"{count(ahead)} message{'' if ahead == 1 else 's'}" if number == str(ahead) else f"{number} messages"
    whose = "" if tenant is None else f" of tenant {tenant}"
    first = f"it waits behind {others}{whose}" if ahead else f"it is the next message{whose}"
    if around.turn is None or around.turn >= _PARKED or not around.before:
        return first
    number_before = f"{count(around.before)} other{'' if around.before == 1 else 's'}"
    return f"{first}, whose turn comes after {number_before}"


def _lease_words(around: Surroundings, token: bytes, ends: float, what: str = "its lease") -> str:
    """Say when a lease was renewed, if its worker says how long it is, and when it ends."""
    worker = around.workers.get(process_of(token).hex())
    lease = worker.lease_seconds if worker else None
    left = max(0.0, ends - around.at)
    if lease is None or left > lease:
        return f"the first lease ends in {age(left)}" if what == "leases" else f"{what} ends in {age(left)}"
    return f"{what}{'' if what == 'leases' else ' was'} renewed {age(lease - left)} ago"


async def _journal(part: PartOperator, message_id: str) -> JournalPart:
    """Return what the newest entries of the journal tell of a message; nothing without a journal."""
    return await part.finder.search_journal(message_id, max_entries=MOST_MESSAGES)


async def _history(part: PartOperator, message_id: str) -> list[TraceEntry]:
    return [entry for _, entry in (await _journal(part, message_id)).entries]


def _last(history: Sequence[TraceEntry], events: Iterable[str]) -> TraceEntry | None:
    return next((entry for entry in reversed(history) if entry.event in events), None)


async def _recorded(part: PartOperator, message_id: str) -> Reason | None:
    """Say how a message ended, by the lists of those that have."""
    wanted = f'"{message_id}"'.encode()
    for kind, (_, key) in part.pages.keys.terminal_lists.items():
        for first in range(0, MOST_MESSAGES, PAGE):
            page = await part.pages.read_list(key, "left", first, PAGE)
            for stored in page:
                record = single_record(stored) if wanted in stored else None
                if record is not None and record.id == message_id:
                    return _of_record(kind, record)
            if len(page) < PAGE:
                break
    return None


def _of_record(kind: str, record: MessageRecord) -> Reason:
    cause, text = _LISTS[kind]
    ended = f" {'at' if kind == 'completed' else 'since'} {when(record.finished_at)}" if record.finished_at else ""
    by = f" by {one_line(record.consumer, 80)}" if record.consumer and kind == "completed" else ""
    because = ""
    if kind != "completed":
        error = one_line(f"{record.error_type}: {record.error}" if record.error else record.error_type or "", 500)
        reason = _reason(record.reason)
        because = " because " + "; ".join(one for one in (reason, error) if one) if reason or error else ""
    return Reason(cause, f"{text}{ended}{by}{because}", _facts_of(record))


def _reason(reason: str | None) -> str:
    """Return a reason as a sentence says it; '' for one that says no more than its list."""
    return "" if reason in (None, "failed", "completed") else _REASONS.get(reason, one_line(reason))


def _facts_of(record: MessageRecord) -> dict[str, Any]:
    """Return what is known of the message, without its payload."""
    names = ("state", "tenant", "delivery_count", "published_at", "finished_at", "consumer", "reason", "error_type")
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _ordinal(number: int) -> str:
    words = ("first", "second", "third", "fourth", "fifth")
    return words[number - 1] if number <= len(words) else f"{number}th"
