"""Batches of streaming queries."""

from __future__ import annotations

from simulator.keyspace import List
from simulator.oracle.book import Moved
from simulator.oracle.invariants import fail
from simulator.oracle.places import BATCH
from simulator.oracle.steps import group_of, named_arguments, queue_of
from simulator.oracle.turns import Turns
from simulator.server import Step


class Batches(Turns):
    """Knows the sealed batches, and which query holds a group."""

    def _after_fill_batch(self, step: Step, moved: Moved) -> None:
        self._check_epoch(step, moved)
        queue, given = queue_of(step), named_arguments(step)
        rules = self.rules[queue]
        members = self._keyspace().values.get(f"{group_of(step)}::{given['number']}".encode())
        added = list(members)[-step.reply[1] :] if step.reply[1] and isinstance(members, List) else []
        taken = [payload for payload in self._payloads(BATCH, added) if moved.get(payload, ("", ""))[1] == BATCH]
        self._delivered = taken
        self._take_turns(queue, taken, moved)
        for payload in taken:
            self._check_paused(step, payload)
            self.account.deliveries[payload] += 1
            self.account.attempts[payload] += 1
            if rules.max_deliveries and self.account.deliveries[payload] > rules.max_deliveries:
                fail("delivery limit", f"{payload.decode()} was delivered too often, to a batch")
            if self._is_too_old(payload, step.now_us, rules):
                fail("delivery limit", f"{payload.decode()} came into a batch after its time to live")

    def _after_seal_batch(self, step: Step, moved: Moved) -> None:
        self._check_epoch(step, moved)
        group = group_of(step)
        for number in range(1, step.reply + 1):
            if (group, number) not in self.account.sealed:
                members = self._keyspace().values.get(f"{group}::{number}".encode())
                found = tuple(members) if isinstance(members, List) else ()
                self.account.sealed[group, number] = int(named_arguments(step)["slices"]), found

    def _after_ack_batch(self, step: Step, moved: Moved) -> None:
        self._check_epoch(step, moved)

    def _after_release_batch(self, step: Step, moved: Moved) -> None:
        self._check_epoch(step, moved)

    def _after_acquire_group(self, step: Step, moved: Moved) -> None:
        taken, epoch, _ = step.reply
        group = group_of(step)
        before = self.account.epochs.get(group, 0)
        if taken and epoch < before:
            fail("batches", f"{group} went back from epoch {before} to {epoch}")
        if taken:
            self.account.epochs[group] = epoch

    def _check_epoch(self, step: Step, moved: Moved) -> None:
        epoch, group = int(named_arguments(step)["epoch"]), group_of(step)
        if step.changed and epoch != self.account.epochs.get(group):
            fail("batches", f"{step.name} worked in epoch {epoch} of {group}, which is past")

    def batch_read(self, group: str, number: int, slices: list[list[bytes]]) -> None:
        """A query has read a sealed batch, slice by slice."""
        known = self.account.sealed.get((group, number))
        if known is None:
            return
        count, members = known
        if tuple(member for one in slices for member in one) != members:
            fail("batches", f"batch {number} of {group} has changed since it was sealed")
        if len(slices) != count:
            fail("batches", f"batch {number} of {group} was sealed in {count} slices, and read in {len(slices)}")
