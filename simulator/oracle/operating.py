"""What producers and operators do: publish, redrive, cancel, pause, schedule and grow."""

from __future__ import annotations

from redis_message_queue.stored.envelope import Envelope
from simulator.lua import as_bytes
from simulator.oracle.book import Book, Moved
from simulator.oracle.invariants import fail
from simulator.oracle.places import BATCH, GONE, NOWHERE, PROCESSING, WAITING
from simulator.oracle.steps import (
    check_number,
    enqueued,
    key_owner,
    named_arguments,
    payload_key,
    queue_of,
    split_key,
    tenant_of,
)
from simulator.oracle.ticks import ScheduleEntry
from simulator.server import Step


class Operating(Book):
    """Judges the scripts that neither claim nor settle."""

    def _after_publish(self, step: Step, moved: Moved) -> None:
        given = named_arguments(step)
        if step.reply == 0:
            self._call_duplicate(step, Envelope(as_bytes(given["head"]) + bytes(8) + as_bytes(given["body"])).payload)

    def _after_enqueue(self, step: Step, moved: Moved) -> None:
        payloads = enqueued(step)
        if named_arguments(step)["form"] != "each":  # where a message may have come and gone in one script
            self._check_dropped(step, moved, len(payloads))
        for payload, mark in zip(payloads, step.reply, strict=False):  # '-' has no marks, and ids may follow them
            if mark == ord("0"):
                self._call_duplicate(step, payload)

    def _check_dropped(self, step: Step, moved: Moved, marks: int) -> None:
        """Whether its caller is told of the messages that made room; an answer from the reply cache moves none."""
        ids = as_bytes(step.reply)[marks:]
        told = {ids[at : at + 16] for at in range(0, len(ids), 16)}
        dropped = {self.account.stored[payload][1:17] for payload, (_, after) in moved.items() if after == GONE}
        if dropped and dropped != told:
            fail("accounted for", f"{step.name} dropped {len(dropped)} messages, and told its caller of others")

    def _after_redrive(self, step: Step, moved: Moved) -> None:
        for payload in moved:
            self.account.deliveries[payload] = self.account.attempts[payload] = self.account.failures[payload] = 0
            key = payload_key(payload)
            if step.was_full:
                fail("full memory", f"a full server redrove {payload.decode()}")
            if key and self._rules_of(payload).window_us and step.keys and len(step.keys) > 14:
                self.account.last_of_key[queue_of(step), key_owner(payload)] = step.now_us

    def _after_cancel(self, step: Step, moved: Moved) -> None:
        """What was answered is where the message is. An answer from the reply cache changes nothing."""
        given, answer = as_bytes(named_arguments(step)["id"]), as_bytes(step.reply)
        payload, identity = self._payload_of(given), (queue_of(step), given)
        if step.changed and answer == b"marked":
            self.account.marked.add(identity)
        if not step.changed or payload is None or self.account.home[payload] != identity[0]:
            return  # a server that lost a message marks its id, too, and so does another partition
        place = self._place(payload)
        if (place == PROCESSING and bool(self._rules_of(payload).lease_us)) != (answer == b"in_flight"):
            fail("cancelled", f"{payload.decode()} is {place}, and was called {answer.decode()}")
        if bool(moved) != (answer == b"cancelled") or (place in (WAITING, BATCH) and answer != b"marked"):
            fail("cancelled", f"{payload.decode()} is {place}, and was called {answer.decode()}")
        if answer == b"marked" and place == WAITING:
            self.account.doomed.add(identity)
        elif answer == b"cancelled":
            self.account.marked.discard(identity)

    def _after_pause(self, step: Step, moved: Moved) -> None:
        """An answer from the reply cache changes nothing."""
        given, paused, queue = named_arguments(step), self.account.paused, queue_of(step)
        tenant, pauses = as_bytes(given["tenant"]).decode(), bool(int(given["pauses"]))
        was_paused = (queue, tenant) in paused
        if not step.changed:
            return
        if (as_bytes(step.reply) == b"1") != (was_paused != pauses):
            fail(
                "paused",
                f"{step.name} answered {step.reply!r}, and {tenant!r} was {'' if was_paused else 'not '}paused",
            )
        if was_paused != pauses:
            self.account.missed[queue].pop(tenant, None)  # it comes back as a tenant with its first message
        (paused.add if pauses else paused.discard)((queue, tenant))

    # -- partitions

    def _after_grow_partition(self, step: Step, moved: Moved) -> None:
        if step.changed:
            queue, new = queue_of(step), int(named_arguments(step)["new"])
            if new < self.account.partitions.get(queue, 0):
                fail("partitions", f"{queue} had {self.account.partitions[queue]} partitions, and has {new} now")
            self.account.partitions[queue] = new

    def _after_open_queue(self, step: Step, moved: Moved) -> None:
        """A partition that is used for the first time may have pauses already: a growth has brought them."""
        queue, meta = queue_of(step), self._meta(queue_of(step))
        own = {(queue, field[len(b"paused:") :].decode()) for field in meta if field.startswith(b"paused:")}
        self.account.paused = {one for one in self.account.paused if one[0] != queue} | own

    def _after_restore(self, step: Step, moved: Moved) -> None:
        """What was cancelled before the export is cancelled again."""
        given = named_arguments(step)
        messages = [as_bytes(one) for one in step.arguments[len(given) :]]
        for known, stored in zip(messages[2::4], messages[3::4], strict=True):
            identity = (queue_of(step), stored[1:17])
            if b"c" in known and self._payload_of(stored[1:17]) in moved:
                self.account.marked.add(identity)
                self.account.doomed.add(identity)

    # -- schedules

    def _after_schedule(self, step: Step, moved: Moved) -> None:
        key, schedules = step.keys[-1], self.account.schedules
        if key.encode() not in step.changed:
            return  # it was the same, or the answer is from the reply cache
        entry, before = ScheduleEntry.of(named_arguments(step), step.now_us), schedules.get(key)
        if (step.reply == b"changed") != (before is not None):
            fail("schedules", f"{key} was called {step.reply.decode()}")
        # Its ticks stay there when the queue grows.
        check_number(step, tenant_of(entry.payload) or split_key(key.encode())[2])
        if before is not None and before.timing == entry.timing:
            entry.done_us = before.done_us  # only the message is another one
        schedules[key] = entry

    def _after_unschedule(self, step: Step, moved: Moved) -> None:
        if step.keys[-1].encode() in step.changed:
            self.account.schedules.pop(step.keys[-1], None)

    def _after_tick(self, step: Step, moved: Moved) -> None:
        """It publishes what is due since the last tick, and nothing else."""
        key, done_us = step.keys[-1], int(named_arguments(step)["done"])
        published = {payload for payload, (before, _) in moved.items() if before == NOWHERE}
        if key.encode() not in step.changed:
            if moved:
                fail("schedules", f"{key} was not advanced, and has published {min(moved).decode()}")
            return
        entry = self.account.schedules.get(key)
        if entry is None or not entry.done_us <= done_us <= step.now_us:
            fail("schedules", f"{key} was advanced to {done_us}, and is not so far")
        if published != entry.ticks(done_us, step.now_us):
            fail("schedules", f"{key} was advanced to {done_us}, and {len(published)} messages were published")
        entry.done_us = done_us

    def has_schedules(self) -> bool:
        """Whether messages will come without a producer."""
        return bool(self.account.schedules)
