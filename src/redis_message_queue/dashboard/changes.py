"""The changes that a person can make in the dashboard, after confirming them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from redis_message_queue.asyncio import RedisMessageQueue
from redis_message_queue.dashboard.search import CANCELLED, REDRIVEN, SOURCES, Matcher, matcher
from redis_message_queue.protocol.event_emitter import log
from redis_message_queue.protocol.operate.purge import PurgeTarget
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.messages import MessageRecord
from redis_message_queue.values.wording import messages, one_line

MOST_REDRIVEN = 10_000  # in one step, so that the page answers
MOST_IDS = 200
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Change:
    """A change to a queue, as the form of its page says it."""

    action: str
    queue: str
    source: str  # or what to purge
    ids: Sequence[str] = field(default=())
    text: str = ""
    where: str = ""
    tenant: str = ""
    schedule: str = ""

    def __post_init__(self) -> None:
        sources: dict[str, Sequence[str]] = {"redrive": REDRIVEN, "purge": get_args(PurgeTarget), "cancel": CANCELLED}
        if self.source not in (sources | dict.fromkeys(("pause", "resume", "unschedule"), ("",))).get(self.action, ()):
            raise ConfigurationError(f"cannot {one_line(self.action)} {one_line(self.source)}")
        if self.action == "cancel" and not self.ids:
            raise ConfigurationError("choose at least one message to cancel")
        if bool(self.schedule) != (self.action == "unschedule"):
            raise ConfigurationError("schedule goes with removing one")
        if len(self.ids) > MOST_IDS or not all(map(_ID.fullmatch, self.ids)):
            raise ConfigurationError(f"ids must be at most {MOST_IDS} ids of 32 hexadecimal digits")
        if self.tenant and (self.action, self.source) not in (("purge", "pending"), ("pause", ""), ("resume", "")):
            raise ConfigurationError("tenant goes with pausing, resuming and purging pending messages")
        if self.tenant:
            tenant_name(self.tenant)  # raises for a name that no tenant can have
        matcher(self.text, self.where, self.source)  # raises for a condition that cannot be read

    @property
    def needs_name(self) -> bool:
        """Whether the person must type the name of the queue: this cannot be undone."""
        return self.action == "purge"

    @property
    def verb(self) -> str:
        """The text of the button."""
        return {"purge": "Delete", "cancel": "Cancel them", "unschedule": "Remove"}.get(
            self.action, self.action.capitalize()
        )

    async def question(self, queue: RedisMessageQueue) -> str:
        """Return what would happen, with numbers."""
        where = "dead letters" if self.source == "dead_letters" else SOURCES.get(self.source, self.source).lower()
        name = one_line(self.queue)
        if self.tenant and self.action in ("pause", "resume"):
            name = f"tenant {one_line(self.tenant)} of {name}"
        if self.action == "pause":
            return f"Pause {name}? Consumers stop claiming its messages within a second; publishing goes on."
        if self.action == "resume":
            return f"Resume {name}? Consumers claim its messages again at once."
        if self.action == "unschedule":
            return f"Remove the schedule {one_line(self.schedule)} of {name}? Messages that it has published stay."
        if self.action == "cancel":
            return f"Cancel {messages(len(self.ids))} of {name}?"
        if self.action == "redrive":
            if self.ids:
                return f"Publish {messages(len(self.ids))} from {where} of {name} again?"
            which = "that match the search " if self.text or self.where else ""
            return f"Publish messages {which}from {where} of {name} again, the oldest first, up to {MOST_REDRIVEN:,}?"
        if self.tenant:
            number = messages(await queue.tenant(self.tenant).length())
            return f"Delete {number} of tenant {one_line(self.tenant)} waiting in {name} for good?"
        stats = await queue.stats(oldest=False)
        if self.source == "orphans":
            number = messages(stats.processing)
            return f"Delete those of {number} in processing of {name} that have no lease and no consumer?"
        return f"Delete {messages(getattr(stats, self.source))} ({where}) of {name} for good?"

    async def make(self, queue: RedisMessageQueue, who: str) -> str:
        """Do it, log it, and return what was done."""
        if self.action == "pause":
            done = "Paused." if await queue.pause(tenant=self.tenant or None) else "It was paused already."
        elif self.action == "resume":
            done = "Resumed." if await queue.resume(tenant=self.tenant or None) else "It was not paused."
        elif self.action == "unschedule":
            done = "Removed." if await queue.unschedule(self.schedule) else "There was no such schedule any more."
        elif self.action == "cancel":
            done = await self._cancel(queue)
        elif self.action == "purge":
            removed = await (queue.tenant(self.tenant).delete() if self.tenant else queue.purge(self._target))
            done = f"Deleted {messages(removed)}."
        else:
            redrive = queue.redrive_failed if self.source == "failed" else queue.redrive_dead_letters
            summary = await redrive(
                max_messages=min(len(self.ids) or MOST_REDRIVEN, MOST_REDRIVEN), where=self._selects()
            )
            done = f"Published {messages(summary.redriven)} again."
            if self.ids and summary.redriven < len(self.ids):
                done += f" {messages(len(self.ids) - summary.redriven)} had left the list meanwhile."
            elif summary.matched == MOST_REDRIVEN:
                done += " There may be more: repeat it."
        log.warning("%s: dashboard: %s %s by %s: %s", one_line(self.queue), self.action, self.source, who, done)
        return done

    async def _cancel(self, queue: RedisMessageQueue) -> str:
        outcomes: Counter[str] = Counter([await queue.cancel(one) for one in self.ids])
        said = {
            "cancelled": "Removed {}.",
            "marked": "Marked {}, to be dropped in turn.",
            "in_flight": "{} already held by a consumer.",
            "unknown": "{} no longer in the queue.",
        }
        return " ".join(said[one].format(messages(outcomes[one])) for one in said if outcomes[one])

    @property
    def _target(self) -> PurgeTarget:
        return self.source  # type: ignore[return-value]  # __post_init__ has checked it

    def _selects(self) -> Matcher:
        matches, ids = matcher(self.text, self.where, self.source), frozenset(self.ids)

        def selects(record: MessageRecord) -> bool:
            return (not ids or record.id in ids) and (matches is None or matches(record))

        return selects
