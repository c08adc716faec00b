"""Writes believable journals into a real Redis: tenants, retries, dead letters, gaps, everything mixed up in time."""

import random
from dataclasses import dataclass, field
from typing import Any

import redis

from redis_message_queue.spark.journal import JournalReader
from redis_message_queue.spark.options import QueueAddress
from redis_message_queue.stored.envelope import head

MINUTE = 60_000_000
START = 1_790_000_000_000_000 // (86_400_000_000) * 86_400_000_000  # a midnight
TENANTS = ("acme", "globex", "initech", "")
ERRORS = ("ValueError", "requests.Timeout", "KeyError")
Event = dict[str, Any]


@dataclass
class Events:
    """What happened to a queue, in the order of its serials, and which messages it holds at the end."""

    events: list[Event] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)  # ids
    processing: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)


class JournalSample:
    """Makes up what happens to messages; the same seed gives the same events."""

    def __init__(self, seed: int, payloads: bool = False, start: int = START, minutes: float = 10) -> None:
        self._chance = random.Random(seed)
        self._payloads, self._start, self._minutes = payloads, start, minutes
        self._told: list[tuple[int, int, Event]] = []
        self._open: dict[str, list[str]] = {"pending": [], "processing": [], "delayed": []}

    def story(self, messages: int) -> Events:
        for number in range(messages):
            self._message(number)
        self._purge()
        # In the order of time, those of one message in theirs: the number told breaks ties.
        self._told.sort(key=lambda one: one[:2])
        return Events([event for _, _, event in self._told], **self._open)

    def _say(self, at: float, event: str, message_id: str, tenant: str, **more: Any) -> None:
        fields = {name: value for name, value in more.items() if value is not None}
        self._told.append(
            (int(at), len(self._told), {"at": int(at), "event": event, "id": message_id, "tenant": tenant, **fields})
        )

    def _fresh_id(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def _message(self, number: int) -> None:
        chance, message_id = self._chance, self._fresh_id()
        tenant = chance.choices(TENANTS, (6, 3, 1, 2))[0]
        at = self._start + chance.random() * self._minutes * MINUTE
        payload = f'{{"order": {number}}}' if self._payloads else None
        if chance.random() < 0.05:
            self._say(at, "duplicate", message_id, tenant)
            return
        self._say(at, "published", message_id, tenant, payload=payload)
        due = None
        if chance.random() < 0.1:
            due = int(at + chance.random() * 2 * MINUTE)
            self._say(at, "delayed", message_id, tenant, due=due)
        end = chance.random()
        if end < 0.02:
            self._open["delayed" if due else "pending"].append(message_id)
        elif end < 0.04:
            self._say(at + chance.random() * MINUTE, chance.choice(["expired", "dropped"]), message_id, tenant)
        else:
            self._deliver(message_id, tenant, float(due or at), payload)

    def _deliver(self, message_id: str, tenant: str, at: float, payload: str | None) -> None:
        chance, count, tries, failures = self._chance, 0, 0, 0
        while True:
            count, tries = count + 1, tries + 1
            at += chance.expovariate(1 / 3_000_000)
            took_over = tries > 1 and chance.random() < 0.3
            self._say(at, "reclaimed" if took_over else "claimed", message_id, tenant, count=count)
            at += chance.expovariate(1 / 500_000) + 1
            end = chance.random()
            if end < 0.78:
                handed = chance.random() < 0.2
                details: dict[str, Any] = {"results": 2} if handed else {}
                if int(message_id, 16) % 2:  # a loop, whose messages wait before and after their handlers
                    details |= {"started": int(at) - 300, "handled": 200}
                self._say(at, "handed_off" if handed else "acked", message_id, tenant, **details)
                return
            if end < 0.80:
                self._open["processing"].append(message_id)
                return
            if end < 0.83:
                self._say(
                    at, "failed", message_id, tenant, reason="failed", error_type=chance.choice(ERRORS), count=count
                )
                return
            if end < 0.87:
                self._say(at, "requeued", message_id, tenant)
                continue
            if tries >= 2:
                self._die(message_id, tenant, at, count, payload)
                return
            failures += 1
            due = int(at + chance.random() * MINUTE)
            self._say(at, "retried", message_id, tenant, due=due, failures=failures, error_type=chance.choice(ERRORS))
            at = float(due)
            count -= 1  # a failure does not use up a delivery

    def _die(self, message_id: str, tenant: str, at: float, count: int, payload: str | None) -> None:
        chance = self._chance
        error = chance.choice((*ERRORS, None))
        reason = "deliveries" if error is None else "attempts used up"
        self._say(at, "dead", message_id, tenant, reason=reason, count=count, error_type=error)
        if chance.random() < 0.3:
            again = self._fresh_id()
            at += MINUTE
            self._say(at, "redriven", again, tenant, replay_of=message_id, payload=payload)
            self._deliver(again, tenant, at, payload)

    def _purge(self) -> None:
        """Somebody throws away half of what waits, and the list of completed messages, which loses nothing."""
        at = max((one[0] for one in self._told), default=self._start) + MINUTE
        gone = len(self._open["pending"]) // 2
        if gone:
            self._say(at, "purged", "", "", count=gone, target="pending")
            del self._open["pending"][:gone]
        self._say(at + 1, "purged", "", "", count=3, target="completed")


def write_journal(
    client: "redis.Redis", address: QueueAddress, story: Events, *, lost: tuple[range, ...] = (), announced: bool = True
) -> list[Event]:
    """XADD a story, with serials and state as the scripts write them; the events that really got in.

    Serials in ``lost`` are left out, and with ``announced`` a `gap` entry stands where the journal goes on.
    """
    with JournalReader(address) as journal:
        key, state = journal.key, journal.state_key
    pipe = client.pipeline(transaction=False)
    serial, last, written = int(client.hget(state, "journal_serial") or 0), (0, 0), []
    newest = client.xrevrange(key, count=1)
    if newest:
        ms, _, sequence = newest[0][0].decode().partition("-")
        last = (int(ms), int(sequence))

    def add(event: Event) -> None:
        nonlocal last
        ms = max(event.get("at", 0) // 1000, last[0])  # a gap has no time
        last = (ms, last[1] + 1 if ms == last[0] else 0)
        fields: dict[Any, Any] = {"n": serial, **event}
        pipe.xadd(key, fields, id=f"{last[0]}-{last[1]}")
        written.append(fields)

    for event in story.events:
        serial += 1
        if any(serial in one for one in lost):
            continue
        add(event)
        for one in lost if announced else ():
            if serial == one.stop:  # the first one behind it
                serial += 1
                add({"event": "gap", "first": one.start, "count": len(one)})
    pipe.hset(
        state,
        mapping={"version": 1, "journal": 1, "journal_soft": 1000, "journal_hard": 10_000, "journal_serial": serial},
    )
    pipe.hsetnx(state, "journal_identity", f"{random.getrandbits(128):032x}")
    pipe.execute()
    return written


def fill_queue(client: "redis.Redis", address: QueueAddress, story: Events) -> None:
    """Store the messages that the story leaves in the queue where the queue keeps them."""
    keys = address.keys
    for message in story.pending:
        client.lpush(keys.pending, stored(message))
    for message in story.processing:
        client.hset(keys.processing, bytes.fromhex(message), stored(message))
    for place, message in enumerate(story.delayed):
        client.zadd(keys.delayed, {bytes.fromhex(message): place})
        client.hset(keys.delayed_messages, bytes.fromhex(message), stored(message))


def stored(message: str) -> bytes:
    """A message as a queue stores it."""
    return head(bytes.fromhex(message)) + START.to_bytes(8, "big") + b"payload"
