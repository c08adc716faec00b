"""Moves: how messages get from one place to another, and which step may do that."""

from __future__ import annotations

from collections import Counter

from simulator.oracle.account import Rules
from simulator.oracle.book import Book, Moved
from simulator.oracle.invariants import fail
from simulator.oracle.places import (
    BATCH,
    COMPLETED,
    DEAD,
    DELAYED,
    FAILED,
    GONE,
    NOWHERE,
    PROCESSING,
    TERMINAL,
    WAITING,
)
from simulator.oracle.steps import (
    check_number,
    enqueued,
    key_owner,
    listed,
    partitions_of,
    payload_key,
    queue_of,
    split_key,
)
from simulator.server import Step

_ENTER = {(NOWHERE, WAITING), (NOWHERE, DELAYED)}
_TAKE = {(DELAYED, WAITING), (WAITING, DEAD), (DELAYED, DEAD), (PROCESSING, DEAD), (DEAD, GONE)}
_DROP = {(WAITING, GONE), (DELAYED, GONE)}  # of cancelled messages
MOVES: dict[str, set[tuple[str, str]]] = {
    "publish": _ENTER,
    "enqueue": {*_ENTER, (WAITING, GONE)},
    "backfill": {(NOWHERE, WAITING)},
    "cancel": {(DELAYED, GONE)},
    "claim": {*_TAKE, *_DROP, (WAITING, PROCESSING), (DELAYED, PROCESSING)},
    "take": {(WAITING, PROCESSING)},
    "ack_one": {(PROCESSING, GONE)},
    "ack_and_take": {(PROCESSING, GONE), (WAITING, PROCESSING)},
    "settle": {(PROCESSING, GONE), *((PROCESSING, kind) for kind in TERMINAL), *((kind, GONE) for kind in TERMINAL)},
    "requeue": {(PROCESSING, WAITING)},
    "retry_later": {(PROCESSING, DELAYED)},
    "hand_off": {*_ENTER, (PROCESSING, GONE), (PROCESSING, COMPLETED), (COMPLETED, GONE), (WAITING, GONE)},
    "redrive": {(DEAD, WAITING), (FAILED, WAITING)},
    "restore": _ENTER,
    "tick": {*_ENTER, (WAITING, GONE)},
    "append": {(NOWHERE, kind) for kind in TERMINAL},
    "sweep": {(kind, GONE) for kind in (WAITING, DELAYED, PROCESSING, *TERMINAL)},
    "fill_batch": {*_TAKE, *_DROP, (WAITING, BATCH), (DELAYED, BATCH), (PROCESSING, BATCH)},
    "ack_batch": {(BATCH, GONE)},
    "release_batch": {(BATCH, WAITING)},
}


_IN_LINE = ("publish", "enqueue", "hand_off", "claim", "take", "ack_and_take")


class Moves(Book):
    """Follows the keys, and judges each move."""

    def _update(self, step: Step) -> Moved:
        """Read the keys that changed. Returns which messages moved, from where to where."""
        account, values = self.account, self._keyspace().values
        touched: dict[bytes, str] = {}
        for key in sorted(step.changed):  # a set has another order in each process
            kind = self._kind(key)
            if kind is None:
                continue
            before = account.contents.get(key, Counter())
            after = Counter(self._terminal(key) if kind in TERMINAL else self._payloads(kind, values.get(key)))
            if kind == WAITING:
                _check_line(step, list(before), list(after))
            if after:
                account.contents[key] = after
            else:
                account.contents.pop(key, None)
                if kind == WAITING:
                    account.missed[split_key(key)[0]].pop(split_key(key)[2], None)
            for payload in sorted(before.keys() | after.keys()):
                change = after[payload] - before[payload]
                if change:
                    if change > 0 and account.home.setdefault(payload, split_key(key)[0]) != split_key(key)[0]:
                        fail("partitions", f"{step.name} took {payload.decode()} to {key.decode()}")
                    if payload not in touched:
                        touched[payload] = self._place(payload)
                    places = account.where.setdefault(payload, Counter())
                    places[kind] += change
                    if not places[kind]:
                        del places[kind]
        moved = {}
        for payload, place in touched.items():
            now = self._place(payload)
            if now != place:
                moved[payload] = (place, now)
        return moved

    def _check_move(self, step: Step, payload: bytes, before: str, after: str) -> None:
        account, name, rules = self.account, payload.decode(), self._rules_of(payload)
        if step.name in ("claim", "take", "ack_and_take", "fill_batch") and self._is_marked(payload):
            self._check_drop(step, payload, after)
        elif before != DEAD and after == GONE and self._is_cut_off(step, rules):
            # Of more dead letters than the list may have, the first have left it when the script ends.
            self._check_dead(step, payload, rules)
        elif (before, after) not in MOVES.get(step.name, ()):
            fail("one place", f"{step.name} moved {name} from {before} to {after}")
        elif (before, after) in _DROP and step.name in ("claim", "fill_batch"):
            fail("cancelled", f"{step.name} dropped {name}, which nobody has cancelled")
        if before == NOWHERE:
            self._accept(step, payload)
        if before == WAITING and step.name in ("claim", "take", "ack_and_take", "fill_batch"):
            self._check_paused(step, payload)
        if before == GONE:
            if step.name in ("tick", "restore"):
                fail("schedules" if step.name == "tick" else "imports", f"{name} was stored a second time")
            fail("accounted for", f"{step.name} brought back {name}, which was gone")
        if before == WAITING and after == GONE and step.name in ("enqueue", "hand_off", "tick") and not rules.drops:
            fail("one place", f"{step.name} dropped {name}")
        if before == PROCESSING and step.name in ("claim", "fill_batch"):
            owner = account.owners.get(payload)
            if owner is not None and owner.until_us > step.now_us:
                fail("lease", f"{step.name} took {name} from its holder {owner.until_us - step.now_us} us too early")
        if after == DEAD and step.name in ("claim", "fill_batch"):
            self._check_dead(step, payload, rules)

    def _check_drop(self, step: Step, payload: bytes, after: str) -> None:
        """A message that waited when it was cancelled is dropped by the claim that meets it, and by no other."""
        account, identity = self.account, self._identity(payload)
        if identity in account.doomed and after not in (GONE, WAITING):
            fail("cancelled", f"{step.name} moved {payload.decode()} to {after}, and it was cancelled")
        if after == GONE:
            account.marked.discard(identity)
            account.doomed.discard(identity)

    def _is_cut_off(self, step: Step, rules: Rules) -> bool:
        """Whether the step filled the dead letters up to their limit."""
        key = f"{queue_of(step)}::dlq".encode() if step.name in ("claim", "fill_batch") else b""
        is_full = self.account.contents.get(key, Counter()).total() == rules.most_dead
        return bool(rules.most_dead) and key in step.changed and is_full

    def _check_dead(self, step: Step, payload: bytes, rules: Rules) -> None:
        used_up = rules.max_deliveries and self.account.deliveries[payload] >= rules.max_deliveries
        if not used_up and not self._is_too_old(payload, step.now_us, rules):
            count = self.account.deliveries[payload]
            fail("delivery limit", f"{payload.decode()} became a dead letter after {count} deliveries, in time")

    def _accept(self, step: Step, payload: bytes) -> None:
        account, rules, name = self.account, self._rules_of(payload), payload.decode()
        if step.was_full:
            fail("full memory", f"{step.name} stored {name} on a full server")
        if payload in self.refused:
            fail("accounted for", f"{name} was stored after its publish had been refused")
        account.accepted_us[payload] = step.now_us
        self._check_partition(step, payload)
        key = payload_key(payload)
        if key and rules.window_us:
            whose = (queue_of(step), key_owner(payload))
            last = account.last_of_key.get(whose)
            if last is not None and step.now_us < last + rules.window_us:
                fail("deduplication", f"{name} was accepted {step.now_us - last} us after another with its key")
            account.last_of_key[whose] = step.now_us

    def _check_count(self, step: Step) -> None:
        """A client that has another number of partitions than its queue changes nothing."""
        number = partitions_of(step)
        # A request that arrives again gets its answer from before, and keeps it longer.
        if number is None or all(split_key(key)[1] == "reply" for key in step.changed):
            return
        if step.name in ("grow_partition", "share_state"):  # the second prepares a partition that nobody uses yet
            return
        known = self.account.partitions.setdefault(queue_of(step), number)
        if known != number:
            fail("partitions", f"{step.name} of a client with {number} partitions changed a queue with {known}")

    def _check_partition(self, step: Step, payload: bytes) -> None:
        """Whether a message enters the partition of its partition key, else its tenant, else its deduplication key."""
        if step.name in ("publish", "enqueue"):
            _, tenant, key, name = payload.decode().split("/")
            check_number(step, name.partition("~")[2] or tenant or key)


def _check_line(step: Step, before: list[bytes], after: list[bytes]) -> None:
    """Whether messages have entered a list at the left, in the order of their call, and left it at the right."""
    if step.name not in _IN_LINE:
        return
    known, kept = {*before}, {*after}
    stays, new = [one for one in after if one in known], [one for one in after if one not in known]
    if stays != before[: len(stays)] or after[: len(new)] != new:
        gone = [one for one in before if one not in kept]
        fail("order", f"{step.name} took {listed(gone)} and added {listed(new)}, and not at the ends of the list")
    if step.name == "enqueue" and new != sorted(new, key=enqueued(step).index, reverse=True):
        fail("order", f"{step.name} added {listed(new)} in another order than that of its call")
