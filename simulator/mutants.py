"""Planted bugs: each is put into the scripts or into the protocol, and the simulator has to find it.

A bug in a script is a change of its text; a bug in the protocol replaces a function while the schedules run. The table
in `docs/explanation/simulator.md` is written from a run of `python -m simulator --mutants`.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from redis_message_queue.protocol import queue as protocol_queue
from redis_message_queue.protocol.calls import Calls, UntilItStepsAside, never_stop
from redis_message_queue.protocol.consume.ack_group import AckGroups
from redis_message_queue.protocol.consume.batch_block import BatchBlock
from redis_message_queue.protocol.consume.claimer import ClaimRound
from redis_message_queue.protocol.consume.delivery import Delivery
from redis_message_queue.protocol.consume.part_claimer import PartClaimer
from redis_message_queue.protocol.consume.settle import SETTLED
from redis_message_queue.protocol.group_commit import GroupCommit
from redis_message_queue.protocol.loop.late_settlements import LateSettlements
from redis_message_queue.protocol.loop.prefetcher import Prefetcher
from redis_message_queue.protocol.loop.worker_loop import Loop
from redis_message_queue.protocol.operate.cancel import Canceller
from redis_message_queue.protocol.parts import ClaimGroup, Parts
from redis_message_queue.protocol.publish.publish_group import PublishGroups
from redis_message_queue.protocol.publish.publisher import Publisher
from redis_message_queue.protocol.schedule_timing import Timing
from redis_message_queue.stored.scripts import Script, all_names, script
from simulator.oracle.invariants import INVARIANTS
from simulator.plan import plan_of
from simulator.world import Outcome, run

PAGE = Path("docs/explanation/simulator.md")
MOST_SCHEDULES = 2000  # after so many a bug counts as not found


@dataclass(frozen=True)
class Mutant:
    """A planted bug."""

    name: str
    where: str
    changes: tuple[tuple[str, str, str], ...] = ()  # a script, or '' for all of them; a text, and what replaces it
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext

    def scripts(self) -> dict[str, Script]:
        """The scripts that differ from the library's."""
        changed: dict[str, Script] = {}
        for which, before, after in self.changes:
            names = [which] if which else [name for name in all_names() if before in script(name).source]
            if not names:
                raise ValueError(f"{self.name}: no script has {before!r} any more")
            for name in names:
                one = changed.get(name, script(name))
                if before not in one.source:
                    raise ValueError(f"{self.name}: {name}.lua has no {before!r} any more")
                source = one.source.replace(before, after)
                changed[name] = replace(one, source=source, sha=hashlib.sha1(source.encode()).hexdigest())
        return changed

    def run(self, seed: int) -> Outcome:
        """Run one schedule with the bug."""
        with self.patch():
            return run(plan_of(seed), scripts=self.scripts())

    def find(self, first: int = 0, most: int = MOST_SCHEDULES) -> tuple[int, Outcome | None]:
        """Run schedules until the bug is found. Returns how many it took, and the one that found it."""
        for tried in range(1, most + 1):
            outcome = self.run(first + tried - 1)
            if outcome.violation is not None:
                return tried, outcome
        return most, None


def _replaced(target: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(target, name, value)


# -- bugs in the protocol


async def _ack_before_the_handler(self: Any, work_item: Any) -> None:
    """As `Loop._handle`, in the wrong order."""
    work_item.begun = True
    self._prefetcher.done(work_item)
    await self._prefetcher.acks.flush()
    try:
        single = self._options.batch_size is None
        await self._options.handler(work_item.messages[0] if single else list(work_item.messages))
    except Exception as error:
        await self._prefetcher.failed(work_item, error)


async def _leave_and_ack_everything(self: Any, error: BaseException | None) -> None:
    unsettled, self._unsettled = self._unsettled, {}
    self.consumer.holding.end_lease()
    if unsettled:
        await self.consumer.delivery.ack(list(unsettled.values()))


async def _drain_and_forget(queue: Any, timeout: float | None) -> bool:
    """As `drain`, but what an unanswered claim has taken stays where it is."""
    queue.gate.is_shut = True
    deadline = None if timeout is None else queue.port.now() + timeout
    while queue.gate.others_are_under_way() and (deadline is None or queue.port.now() < deadline):
        await queue.port.sleep(0.01)
    return not queue.gate.others_are_under_way()


def _shared_slot(self: Any) -> Any:
    """As `Calls.acquire_slot`, but a slot stays free while somebody uses it."""
    here = self.port.process()
    _, free = self._free
    if not free:
        free.append(self._new_slot(here))
        self._free = (here, free)
    return free[-1]


def _due_early(self: Any, after_us: int, now_us: int) -> list[int]:
    """As `Timing.due`, a second ahead."""
    return _due(self, after_us, now_us + 1_000_000)


async def _keep_wakeups(self: Any, taken_from: Any, unused: Any) -> None:
    """As `ClaimRound._pass_on`, without telling anybody."""
    self._timers.clear()


async def _withdraw_nothing(self: Any, message_id: str) -> None:
    """As `Canceller.withdraw`, without doing it."""


async def _send_under_a_new_number(self: Any, callers: Any, call: Any) -> None:
    """As `GroupCommit._send`, but whoever takes over a group of publishes gives it another number."""
    group = callers.group
    if group is not None and self._kind.operation == "publish":
        callers.group = replace(group, arguments=(group.slot.next_call(), *group.arguments[1:]))
    await _send(self, callers, call)


def _request_without_the_last(self: Any, slot: Any, members: Any) -> Any:
    """As `AckGroups.request`, but the last of several messages is forgotten, and called settled."""
    members[-1].outcome = SETTLED if len(members) > 1 else None
    return _request(self, slot, members[:-1] if len(members) > 1 else members)


def _read_the_neighbours(self: Any, reply: Any, members: Any) -> Any:
    """As `PublishGroups.read`, but each caller gets the answer of the one before it."""
    again = _read(self, reply, members)
    outcomes = [one.outcome for one in members]
    for one, outcome in zip(members, (outcomes[-1], *outcomes), strict=False):
        one.outcome = outcome
    return again


async def _settle_in_the_loop(self: Any, part: Any, work: Any) -> None:
    """As `LateSettlements.settle`, but the loop waits until the settlement has ended."""
    while not await UntilItStepsAside(work):
        await self._queue.port.sleep(0.1)


async def _renew_one_after_the_other(self: Any, claims: Any, budget: float, is_over: Any = never_stop) -> list[bool]:
    """As `Parts.renew`, but each part is asked until it answers or the leases would end."""
    owned = [False] * len(claims)
    for part, places, some in self.groups(claims):
        for place, flag in zip(places, await part.scripts.renew(some, budget, is_over), strict=True):
            owned[place] = flag
    return owned


async def _repeat_the_claim(self: Any, *given: Any, **options: Any) -> Any:
    """As `PartClaimer.exchange`, without a limit for a node of a cluster."""
    if self._calls.patience is not None:
        given, options = given[:5], {}
    return await _exchange(self, *given, **options)


async def _take_silence_for_empty(self: Any, wait_seconds: float) -> Any:
    """As `ClaimRound.run`, but a partition without an answer counts as an empty one."""
    self._claimant.needs_certainty = False
    return await _run_round(self, wait_seconds)


_due, _run_round, _exchange = Timing.due, ClaimRound.run, PartClaimer.exchange
_send, _read = GroupCommit._send, PublishGroups.read
_request = AckGroups.request
MUTANTS = (
    # -- group commit
    Mutant(
        "whoever takes over a group sends it under a new number",
        "protocol/group_commit.py",
        patch=_replaced(GroupCommit, "_send", _send_under_a_new_number),
    ),
    Mutant(
        "a caller of a group gets the answer of its neighbour",
        "protocol/publish/publish_group.py",
        patch=_replaced(PublishGroups, "read", _read_the_neighbours),
    ),
    Mutant(
        "a group of acknowledgements forgets its last message",
        "protocol/consume/ack_group.py",
        patch=_replaced(AckGroups, "request", _request_without_the_last),
    ),
    Mutant(
        "a message of a group that has no room is called stored",
        "enqueue.lua",
        (("enqueue", "marks[place] = plan and mark[1] or '-'", "marks[place] = mark[1]"),),
    ),
    # -- fences and leases
    Mutant(
        "settle without a fence: whoever knows the id can ack",
        "lib/owned.lua",
        (("settle", "  if not leased then return bodies, {} end", "  if true then return bodies, {} end"),),
    ),
    Mutant(
        "renew without a token: a consumer that lost a message gets it back",
        "renew.lua",
        (("renew", "  if owned_until then", "  if owned_until or redis.call('HGET', processing, ids[nth]) then"),),
    ),
    Mutant(
        "renew answers yes and renews nothing",
        "renew.lua",
        (("renew", "redis.call('ZADD', leases, unpack(deadlines))", ""),),
    ),
    Mutant(
        "a reclaimed message keeps its old lease",
        "claim.lua",
        (("claim", "if #old_leases > 0 then redis.call('ZREM', leases, unpack(old_leases)) end", ""),),
    ),
    Mutant(
        "a claim takes what another consumer still holds, a second too early",
        "lib/select.lua",
        (
            (
                "claim",
                "redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', seen",
                "redis.call('ZRANGEBYSCORE', leases, '-inf', now + 1000000, 'LIMIT', seen",
            ),
        ),
    ),
    # -- numbered calls
    Mutant(
        "a publish does not store its reply",
        "publish.lua, enqueue.lua",
        (
            ("enqueue", "redis.call('PSETEX', reply, keep_ms, call .. result)", ""),
            ("enqueue", "redis.call('PSETEX', reply, keep_ms, call .. marks)", ""),
            ("publish", "redis.call('PSETEX', reply, keep_ms, call .. (first and '0' or '1'))", ""),
        ),
    ),
    Mutant(
        "a claim does not store its reply",
        "claim.lua, take.lua, ack_and_take.lua",
        (
            ("claim", "redis.call('PSETEX', reply, hold_ms, call .. 'u' .. ids)", ""),
            (
                "claim",
                "redis.call('PSETEX', reply, #taken > 0 and hold_ms or keep_ms, call .. cmsgpack.pack(kept))",
                "",
            ),
            ("take", "redis.call('PSETEX', reply, hold_ms, call .. 'u' .. id)", ""),
            ("ack_and_take", "redis.call('PSETEX', reply, hold_ms, call .. 'u' .. id)", ""),
        ),
    ),
    Mutant(
        "a message that is claimed with an ack gets no lease",
        "ack_and_take.lua",
        (("ack_and_take", "redis.call('ZADD', leases, now + lease_us, id .. nonce)", ""),),
    ),
    Mutant(
        "a call that was overtaken is executed",
        "lib/reply.lua",
        (("", "  elseif number and number > call and ", "  elseif false and "),),
    ),
    Mutant(
        "two calls share a reply slot",
        "protocol/calls.py",
        patch=_replaced(Calls, "acquire_slot", _shared_slot),
    ),
    # -- one place
    Mutant(
        "a settled message stays in flight: the fast path forgets one of two keys",
        "ack_one.lua, ack_and_take.lua",
        (
            ("ack_one", "redis.call('HDEL', processing, id)\n", ""),
            ("ack_and_take", "redis.call('HDEL', processing, done_id)\n", ""),
        ),
    ),
    Mutant(
        "a message that is too old or was delivered too often is removed instead of kept",
        "lib/select.lua",
        (
            (
                "",
                "local trim_error, cut = push_terminal(dlq, records, letters, notes, dlq_limit)",
                "local trim_error, cut = '', 0",
            ),
        ),
    ),
    Mutant(
        "a redriven message stays in the dead letters",
        "redrive.lua",
        (
            ("redrive", "redis.call('LSET', dlq, index_of(one.letter, length, 'right'), tombstone)", ""),
            ("redrive", "remove(dlq, length, letters_gone)", ""),
        ),
    ),
    Mutant(
        "the ack comes before the handler",
        "protocol/loop/worker_loop.py",
        patch=_replaced(Loop, "_handle", _ack_before_the_handler),
    ),
    Mutant(
        "a batch whose handler raised is acknowledged",
        "protocol/consume/batch_block.py",
        patch=_replaced(BatchBlock, "leave", _leave_and_ack_everything),
    ),
    Mutant(
        "requeued messages go to the back of their queue",
        "requeue.lua",
        (("requeue", "push_pending('RPUSH'", "push_pending('LPUSH'"),),
    ),
    # -- deduplication and limits
    Mutant(
        "a deduplication marker is not set",
        "lib/enqueue.lua",
        (("", "redis.call('PSETEX', marker, window_ms, id)", ""),),
    ),
    Mutant(
        "deliveries are not counted",
        "lib/select.lua",
        (("", "attempts = attempts + 1, times = times + 1,", "attempts = attempts + 1, times = times,"),),
    ),
    Mutant(
        "a full server stores a publish",
        "enqueue.lua",
        (
            (
                "enqueue",
                "local silent = redis.call('LLEN', wakeup) == 0",
                "redis.call('HDEL', meta, '') local silent = redis.call('LLEN', wakeup) == 0",
            ),
        ),
    ),
    Mutant(
        "a full server refuses a claim",
        "claim.lua",
        (
            (
                "claim",
                "  redis.call('ZREM', leases, '')\n  redis.call('HSET', processing, ...)",
                "  redis.call('HSET', processing, ...)",
            ),
        ),
    ),
    Mutant(
        "a loop takes an answer for empty that has not seen its own acknowledgements",
        "protocol/loop/prefetcher.py",
        patch=_replaced(Prefetcher, "_own_changes", lambda self: (0, 0)),
    ),
    # -- fairness and wake-ups
    Mutant(
        "a tenant that was served stays first in the ring",
        "claim.lua",
        (("claim", "if others then place_in_ring(math.floor(score) + stride, tenant) else", "if not others then"),),
    ),
    Mutant(
        "a publish wakes nobody",
        "enqueue.lua",
        (
            ("enqueue", "if wakes then wake() end", ""),
            ("enqueue", "if was_empty and silent then redis.call('LPUSH', wakeup, '1') end", ""),
        ),
    ),
    Mutant(
        "the alarm for delayed messages is not set",
        "lib/delayed.lua",
        (("", "  redis.call('ZADD', leases, soonest, 'd')\n", ""),),
    ),
    # -- cancelled messages
    Mutant(
        "a claim delivers a message that was cancelled",
        "lib/select.lua",
        (
            (
                "",
                "local is_cancelled = marked > 0 and redis.call('ZSCORE', cancelled, id)",
                "local is_cancelled = false",
            ),
        ),
    ),
    Mutant(
        "a claim on the short way does not look for cancelled messages",
        "claim.lua",
        (("claim", "and not answer and not journaled and not cancels\n", "and not answer and not journaled\n"),),
    ),
    Mutant(
        "a claim by the script for the usual case does not look for cancelled messages",
        "take.lua",
        (("take", "or paused or cancels then", "or paused then"),),
    ),
    Mutant(
        "a claim drops what was cancelled, and leaves the mark",
        "lib/select.lua",
        (("", "if #dropped > 0 then redis.call('ZREM', cancelled, unpack(dropped)) end", ""),),
    ),
    Mutant(
        "the marks of a message that is found in another partition stay",
        "protocol/operate/operator.py",
        patch=_replaced(Canceller, "withdraw", _withdraw_nothing),
    ),
    Mutant(
        "an import brings back what was cancelled",
        "restore.lua",
        (("restore", "if is_new and string.find(known, 'c', 1, true) then", "if false then"),),
    ),
    # -- paused tenants
    Mutant(
        "a new message brings a paused tenant back into the ring",
        "lib/ring.lua",
        (("", "  if is_paused(tenant) then\n", "  if false then\n"),),
    ),
    Mutant(
        "a tenant whose messages wait keeps its place when it is paused",
        "pause.lua",
        (("pause", "if waits and pauses then redis.call('ZADD', tenant_ring, PARKED, tenant) end", ""),),
    ),
    # -- limits of what a tenant has in flight
    Mutant(
        "a claim does not count what its tenant has in flight already",
        "lib/select.lua",
        (("claim", "in_flight_limit - count_in_flight(turn.tenant)", "in_flight_limit"),),
    ),
    Mutant(
        "a message that failed still counts as one in flight",
        "retry_later.lua",
        (("retry_later", "if not keeps_place then wakes = leave_flight(tenant, {id}) or wakes end\n", ""),),
    ),
    Mutant(
        "a tenant that has room again gets no turns",
        "lib/in_flight.lua",
        (("", "  unpark(tenant, score)\n", ""),),
    ),
    Mutant(
        "nobody is woken when a tenant has room again",
        "settle.lua",
        (("settle", "wakes = leave_flight(tenant, left_ids) or wakes end", "leave_flight(tenant, left_ids) end"),),
    ),
    # -- strict order of a tenant
    Mutant(
        "a message that failed lets the others of its tenant pass",
        "retry_later.lua",
        (("retry_later", "= ordered and leased and tenant ~= '', true", "= false, true"),),
    ),
    Mutant(
        "a message that keeps its place does not count as in flight",
        "retry_later.lua",
        (("retry_later", "if not keeps_place then wakes = leave_flight", "if true then wakes = leave_flight"),),
    ),
    Mutant(
        "a message that keeps its place is still its old consumer's",
        "retry_later.lua",
        (
            ("retry_later", "string.sub(tokens, 1, 31) .. NOBODY", "tokens"),
            (
                "retry_later",
                "if leased then redis.call('ZREM', leases, tokens)",
                "if not keeps_place then redis.call('ZREM', leases, tokens)",
            ),
        ),
    ),
    Mutant(
        "a message that keeps its place does not wait for its next attempt",
        "retry_later.lua",
        (("retry_later", "redis.call('ZADD', leases, due, ", "redis.call('ZADD', leases, now, "),),
    ),
    Mutant(
        "messages that are published together wait in reverse order",
        "lib/enqueue.lua",
        (
            (
                "enqueue",
                "table.insert(tenants[tenant], stored)",
                "table.insert(tenants[tenant], 1, stored)",
            ),
        ),
    ),
    # -- schedules and imports
    Mutant(
        "a tick is published by everybody who is told of it",
        "tick.lua",
        (("tick", "known[1] == revision and known[2] == after", "known[1] == revision"),),
    ),
    Mutant(
        "a schedule that was changed publishes a tick of its old message",
        "tick.lua",
        (("tick", "known[1] == revision and known[2] == after", "known[2] == after"),),
    ),
    Mutant(
        "a tick is published before its time",
        "protocol/schedule_timing.py, tick.lua",
        (("tick", "is_known and done <= now", "is_known"),),
        patch=_replaced(Timing, "due", _due_early),
    ),
    Mutant(
        "a schedule goes on, and its message is not stored",
        "tick.lua",
        (("tick", "    local wakes, dropped = store_messages(plan, 0)", "    local wakes, dropped = false, ''"),),
    ),
    Mutant(
        "the alarm for the next tick is not set again",
        "lib/tick_alarm.lua",
        (("tick", "  redis.call('ZADD', leases, found[2], 's')\n", ""),),
    ),
    Mutant(
        "a changed schedule begins anew",
        "schedule.lua",
        (("schedule", "if result == 'new' or old_timing ~= timing then", "if true then"),),
    ),
    Mutant(
        "an import does not remember its messages",
        "restore.lua",
        (("restore", "plan_messages(restored, markers, due_times)", "plan_messages(restored, {}, due_times)"),),
    ),
    # -- partitions
    Mutant(
        "growing leaves the old number to those who use it",
        "grow_partition.lua",
        (("grow_partition", "redis.call('RENAME', before, meta)", "redis.call('HSET', meta, 'version', '1')"),),
    ),
    Mutant(
        "a slow operator takes away the partitions that another one has added",
        "grow_partition.lua",
        (("grow_partition", "if number > new or found ~= old then", "if found ~= old then"),),
    ),
    Mutant(
        "a tenant that is paused is served from new partitions",
        "read_shared_state.lua",
        (("read_shared_state", " or string.sub(field, 1, 7) == 'paused:' then", " then"),),
    ),
    Mutant(
        "a new partition has no journal until a client asks for one",
        "read_shared_state.lua",
        (("read_shared_state", "{paused = true, journal = true, ", "{paused = true, "),),
    ),
    Mutant(
        "a client with an old number begins anew",
        "open_queue.lua",
        (
            ("open_queue", "if stored and stored ~= partitions then", "if false then"),
            ("open_queue", "if found and found ~= version then", "if false then"),
        ),
    ),
    Mutant(
        "a message without a tenant goes to the first partition, whatever its key is",
        "protocol/publish/publisher.py",
        patch=_replaced(
            Publisher,
            "_part_of_call",
            lambda self, overrides: None if overrides is not None and overrides.tenant else 0,
        ),
    ),
    Mutant(
        "an acknowledgement goes to the first partition",
        "protocol/parts.py",
        patch=_replaced(Parts, "groups", lambda self, claims: [ClaimGroup(self[0], range(len(claims)), claims)]),
    ),
    Mutant(
        "a consumer keeps the wake-ups of the partitions that it leaves alone",
        "protocol/consume/claimer.py",
        patch=_replaced(ClaimRound, "_pass_on", _keep_wakeups),
    ),
    # -- a node of a cluster that is away
    Mutant(
        "a loop waits for settlements that have no answer",
        "protocol/loop/late_settlements.py",
        patch=_replaced(LateSettlements, "settle", _settle_in_the_loop),
    ),
    Mutant(
        "a settlement that has no answer ends the loop",
        "protocol/consume/delivery.py",
        patch=_replaced(Delivery, "has_no_answer", lambda self, error: False),
    ),
    Mutant(
        "a claim of one partition is repeated until its node answers",
        "protocol/consume/part_claimer.py",
        patch=_replaced(PartClaimer, "exchange", _repeat_the_claim),
    ),
    Mutant(
        "the leases of one partition are renewed when those of another have been",
        "protocol/parts.py",
        patch=_replaced(Parts, "renew", _renew_one_after_the_other),
    ),
    Mutant(
        "a loop takes a partition without an answer for an empty one",
        "protocol/consume/claimer.py",
        patch=_replaced(ClaimRound, "run", _take_silence_for_empty),
    ),
    # -- the journal
    Mutant(
        "a requeued message has no entry in the journal",
        "requeue.lua",
        (("requeue", "    record_event('requeued', id, tenant)\n", ""),),
    ),
    Mutant(
        "the journal has an entry for a message that the caller does not own",
        "settle.lua",
        (
            (
                "settle",
                "    marks[#marks + 1] = '0'\n",
                "    marks[#marks + 1] = '0'\n    record_event(event, id, '')\n",
            ),
            ("settle", "\nend\nreturn result", "\nelse\n  write_journal()\nend\nreturn result"),
        ),
    ),
    # -- the consumer's side
    Mutant(
        "a message claimed ahead is started after its lease was lost",
        "protocol/loop/prefetcher.py",
        patch=_replaced(Prefetcher, "_is_short_of_time", lambda self, work_item, now: False),
    ),
    Mutant(
        "a drain forgets unconfirmed claims",
        "protocol/drain.py",
        patch=_replaced(protocol_queue, "drain", _drain_and_forget),
    ),
)


def _find(place: int) -> tuple[int, int, str, str]:
    tried, outcome = MUTANTS[place].find()
    if outcome is None or outcome.violation is None:
        return place, tried, "", ""
    return place, tried, outcome.violation.invariant, outcome.violation.what


def write_table(workers: int, part: str = "") -> int:
    """Find the bugs whose names have this part, and write their rows in the docs. Returns the exit status."""
    places = [place for place, one in enumerate(MUTANTS) if part in one.name]
    if not places:
        print(f"no planted bug has {part!r} in its name")
        return 1
    found: dict[str, tuple[int, str]] = {}
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for place, tried, invariant, what in pool.imap_unordered(_find, places, chunksize=1):
            found[MUTANTS[place].name] = (tried, invariant)
            print(f"{MUTANTS[place].name}: {invariant or 'NOT FOUND'} after {tried} schedules ({what})", flush=True)
    tabulate(found)
    return 0 if all(invariant for _, invariant in found.values()) else 1


def tabulate(found: dict[str, tuple[int, str]]) -> None:
    """Write the tables of the page: how many schedules each bug took, and the invariant that told.

    The rows of bugs that nobody has looked for stay as they are.
    """
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.read_text().splitlines()}
    for one in MUTANTS:
        if one.name in found or one.name not in rows:
            tried, invariant = found.get(one.name, (0, ""))
            told = f"{tried} | {invariant}" if invariant else "- | not found"
            rows[one.name] = f"| {one.name} | `{one.where}` | {told} |"
    header = ["| planted bug | in | schedules until found | invariant that told |", "|---|---|---|---|"]
    _write("mutants", [*header, *(rows[one.name] for one in MUTANTS)])
    _write(
        "invariants", ["| invariant | what it says |", "|---|---|", *(f"| {a} | {b} |" for a, b in INVARIANTS.items())]
    )


def _write(what: str, lines: list[str]) -> None:
    """Replace the lines between two comments of the page."""
    begin, end = f"<!-- {what}: begin -->", f"<!-- {what}: end -->"
    text = PAGE.read_text()
    before, after = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text("\n".join([before + begin, "", *lines, "", end + after]))
