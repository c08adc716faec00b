"""Runs one schedule: a server, a network, processes and faults, with the ledger looking on."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random as random_module
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

from redis_message_queue.protocol.operate.transfer import TransferredMessage
from redis_message_queue.spark import consumer_group
from redis_message_queue.stored.scripts import Script
from simulator import actors
from simulator.bridge import block_on
from simulator.keyspace import Keyspace
from simulator.ledger import Ledger
from simulator.loop import Livelock, Process, SimulatedLoop
from simulator.lua import interpreter
from simulator.network import CLEAR, Network
from simulator.oracle.account import Account, Rules
from simulator.oracle.invariants import Violation
from simulator.oracle.outage import OutageWatch
from simulator.plan import OPERATORS, QUEUE, RESULTS, Actor, Fault, Plan, gateway_options
from simulator.port import SimulatedPort
from simulator.server import Server, Step

_LONGEST = 400.0  # virtual seconds until everything must be handled, after the last fault


@dataclass
class Outcome:
    """How a schedule ended."""

    plan: Plan
    violation: Violation | None
    steps: int  # scripts and commands that the server executed
    callbacks: int
    messages: int
    faults: Counter[str]
    digest: str  # of the trace
    trace: list[tuple[float, str, str, str]]


class World:
    """Everything that takes part in one schedule."""

    def __init__(self, plan: Plan, observe: Callable[[Step], None] | None = None) -> None:
        self.plan = plan
        self._trace: list[tuple[float, str, str, str]] = []
        self.loop = SimulatedLoop(Random(f"{plan.seed}/loop"))  # type: ignore[abstract]  # no sockets
        self.queue_names = queue_names(plan)
        self.keyspace = Keyspace()
        self.servers = [
            Server(interpreter(), self.loop.clock_us, self._observe, self.keyspace) for _ in range(plan.settings.nodes)
        ]
        self.network = Network(self.loop, Random(f"{plan.seed}/network"), self.servers, self._trace_network)
        self.ledger = Ledger(_rules(plan), lambda: self.keyspace)
        self._also_observe = observe
        self.violation: Violation | None = None
        self.lives: dict[str, actors.Life] = {}
        self._births: Counter[str] = Counter()
        self.produced: Counter[str] = Counter()
        self.finished: set[str] = set()
        self.checkpoint = actors.Checkpoint()
        self.in_table: set[bytes] = set()
        self.exports: dict[str, list[TransferredMessage]] = {}  # what each importer has in its file
        self.has_lost_data = False
        self.is_ending = False
        self.is_finishing = False  # nobody begins any more
        self.is_over = False
        self._payloads = 0
        self._requests: dict[str, list[Fault]] = {}
        self._counted: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self._last_disturbance = 0.0
        self.outage = OutageWatch(self)
        for server in self.servers if plan.settings.forgets else ():
            server.cached = set()

    # -- what actors use

    def trace(self, what: str, process: Any, detail: str = "") -> None:
        self._trace.append((self.loop.time(), what, str(process), detail))

    def _trace_network(self, what: str, process: Process, label: str, detail: str = "") -> None:
        self.happened[what] += 1
        self.trace(what, process, f"{label} {detail}".rstrip())

    def port(self, process: Process, random: Random) -> SimulatedPort:
        return SimulatedPort(self.loop, self.network, process, random, self._heard, self.plan.settings.socket_timeout)

    def new_payload(self, queue: str, tenant: str | None, key: str, whose: str) -> str:
        self._payloads += 1
        return f"{queue}/{tenant or ''}/{key}/{whose}-{self._payloads}"

    @property
    def is_clear(self) -> bool:
        """Whether every request that arrives is answered at once."""
        return self.network.weather is CLEAR and not any(one.is_busy for one in self.servers)

    def partitions(self) -> int:
        """How many partitions the queue has; a program that starts is told by an operator, who looks in Redis."""
        values: dict[bytes, Any] = self.keyspace.values
        # After a failover to older state, the first partition may know an older number.
        metas = [values.get(f"{name}::meta".encode()) or {} for name in self.queue_names]
        return max(
            [int(one[b"partitions"]) for one in metas if b"partitions" in one] or [self.plan.settings.partitions]
        )

    async def restart(self, life: actors.Life) -> NoReturn:
        """A process ends and starts again, because the number of partitions is another one."""
        self._last_disturbance = self.loop.time()
        self.loop.spawn(self.loop.world, self._restart_life(life))
        while True:
            await asyncio.sleep(1)  # until it is killed

    async def _restart_life(self, life: actors.Life) -> None:
        self.loop.kill(life.process)
        await asyncio.sleep(0.2)
        if self.lives[life.actor.name] is life and not self.is_finishing:
            self.begin(life.actor)

    def check(self, check: Callable[..., None], *arguments: Any) -> None:
        """Let the ledger check something; the first violation ends the schedule."""
        if self.violation is None:
            try:
                check(*arguments)
            except Violation as violation:
                self._end_with(violation)

    def violated(self, invariant: str, what: str) -> None:
        if self.violation is None:
            self._end_with(Violation(invariant, what))

    def unexpected(self, process: Process, error: BaseException) -> None:
        """An error came out of the library that its documentation does not name."""
        if not process.is_dead:
            self.violated("errors", f"{process} got {type(error).__name__}: {error}")

    def _end_with(self, violation: Violation) -> None:
        self.trace("VIOLATION", "", str(violation))
        self.violation = violation
        self.is_over = True

    def _heard(self, process: Process, call: Any, sent_at: float, answer: Any) -> None:
        self.check(self.ledger.heard, process, call, sent_at, answer)

    def _observe(self, step: Step) -> None:
        self._trace.append((self.loop.time(), step.name, step.caller, _described(step)))
        if self._also_observe is not None:
            self._also_observe(step)
        self.check(self.ledger.step, step)
        self._after_request(step.caller)

    # -- running

    def run(self) -> Outcome:
        """Run the schedule to its end or to its first violation."""
        was_enabled = gc.isenabled()
        gc.disable()  # nothing may be closed at a moment that the seed does not decide
        logging.disable(logging.CRITICAL)
        clock = SimpleNamespace(monotonic=self.loop.time, sleep=lambda seconds: block_on(asyncio.sleep(seconds)))
        try:
            with mock.patch.object(consumer_group, "time", clock):
                self._run()
        finally:
            logging.disable(logging.NOTSET)
            for process in self.loop.processes:
                process.is_dead = True
            self.loop.close_all()
            if was_enabled:
                gc.enable()
        lines = "\n".join(map(repr, self._trace)).encode()
        return Outcome(
            self.plan,
            self.violation,
            self.ledger.steps,
            self.loop.callbacks,
            self._payloads,
            self.happened,
            hashlib.sha256(lines).hexdigest()[:16],
            self._trace,
        )

    def _run(self) -> None:
        self.loop.start(Process("director", 1), self._direct())
        try:
            self.loop.run(lambda: self.is_over)
        except Livelock as error:
            self.violated("left behind", str(error))
        if self.loop.world.errors and self.violation is None:
            raise self.loop.world.errors[0]
        if not self.is_over and self.violation is None:
            self.violated("left behind", "nobody can go on, and the schedule is not over")

    async def _direct(self) -> None:
        """Begin everything, wait until the faults are over, let everybody finish, and look at what is left."""
        plan = self.plan
        for actor in plan.actors:
            self.begin(actor)
        for fault in plan.faults:
            if fault.after_requests:
                self._requests.setdefault(fault.who, []).append(fault)
            else:
                self.loop.spawn(self.loop.world, self._inject(fault))
        watch = self.loop.spawn(self.loop.world, self._watch_for_idle())
        last = max((fault.at + fault.seconds for fault in plan.faults), default=0.0)
        producers = {actor.name for actor in plan.actors if actor.kind in ("producer", "until_empty")}
        await asyncio.sleep(max(last, 2.0) + 0.3)
        deadline = self.loop.time() + _LONGEST
        while not producers <= self.finished and self.loop.time() < deadline:
            await asyncio.sleep(0.5)
        self._requests.clear()
        self.network.weather, self.network.cut_off = CLEAR, set()
        self.is_ending = True
        self._last_disturbance = self.loop.time()
        self.begin(Actor("finisher", "single"))
        self.begin(Actor("collector", "collector"))
        if any(actor.kind == "pauser" for actor in plan.actors):
            self.begin(Actor("resumer", "resumer"))
        if any(actor.kind in ("scheduler", "deployer") for actor in plan.actors):
            self.begin(Actor("unscheduler", "unscheduler"))
        if plan.settings.grows_to:
            self.begin(Actor("last-grower", "grower"))
        await asyncio.sleep(max(0.0, self.network.last_arrival - self.loop.time()) + 0.1)
        while self._is_unfinished() and self.loop.time() < deadline + _LONGEST:
            await asyncio.sleep(0.25)
        if left := self._unfinished():
            places = self.ledger.account.where[left[0]]
            self.violated("left behind", f"{len(left)} messages, such as {left[0].decode()} in {', '.join(places)}")
        while self.ledger.has_idle_marks() and self.loop.time() < deadline + _LONGEST:
            await asyncio.sleep(0.25)  # the next claim of an empty queue forgets them
        watch.cancel()
        await self._let_finish([self.lives[actor.name] for actor in plan.actors])
        # A consumer that ends gives back what it has not started, and somebody has to handle that.
        while self._is_unfinished() and self.loop.time() < deadline + _LONGEST:
            await asyncio.sleep(0.25)
        await self._let_finish([life for life in self.lives.values() if life.actor not in plan.actors])
        self.check(self.ledger.check_the_end)
        self._check_orphans()
        self.is_over = True

    def _check_orphans(self) -> None:
        """Without leases, a message in flight is one whose consumer died or failed to settle it."""
        if orphans := self._held():
            self.violated("left behind", f"{orphans[0].decode()} is in flight, and its consumer has forgotten it")

    def _is_unfinished(self) -> bool:
        return bool(self._unfinished()) or self._is_operated() or self.ledger.has_schedules()

    def _is_operated(self) -> bool:
        """Whether an operator is still at work: what it redrives, somebody has to handle."""
        return any(life.is_at_work for life in self.lives.values() if life.actor.kind in OPERATORS)

    def _unfinished(self) -> list[bytes]:
        leased = self.plan.settings.gateway["message_visibility_timeout_seconds"]
        if leased:
            return self.ledger.unfinished()
        # Without leases, what a dead consumer had stays in flight.
        places, held = self.ledger.account.where, set(self._held())
        return [one for one in self.ledger.unfinished() if "processing" not in places[one] or one in held]

    def _held(self) -> list[bytes]:
        """The messages in flight that a process still has to settle."""
        return self.ledger.held_by(
            {life.process.name for life in self.lives.values() if not life.process.is_dead},
            except_for={token for life in self.lives.values() for token in life.given_up},
        )

    async def _let_finish(self, lives: list[actors.Life]) -> None:
        """Drain each of these queue objects that lives: nothing may be unconfirmed afterwards."""
        self.is_finishing = True
        for life in lives:
            if not life.process.is_dead and life.actor.kind not in ("producer", *OPERATORS):
                self.loop.spawn(life.process, self._finish(life))
        await self._wait_for_ends(lives, 40.0)
        for life in lives:
            if life.is_at_work:
                self.violated("bounded wait", f"{life.process} did not end after its drain")

    async def _wait_for_ends(self, lives: list[actors.Life], seconds: float) -> None:
        deadline = self.loop.time() + seconds
        while any(life.is_at_work for life in lives) and self.loop.time() < deadline:
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)  # drains that are under way beside them

    async def _finish(self, life: actors.Life) -> None:
        if not await life.finish(5.0):
            self.violated("left behind", f"the drain of {life.process} returned False in calm weather")

    def begin(self, actor: Actor) -> None:
        """Start a process for an actor, for the first time or again."""
        self._births[actor.name] += 1
        nth = self._births[actor.name]
        name = actor.name if nth == 1 else f"{actor.name}#{nth}"
        random = Random(f"{self.plan.seed}/{name}/clock")
        process = Process(name, 100 + sum(self._births.values()), clock_offset=random.uniform(-500, 500))
        life = self.lives[actor.name] = actors.Life(self, actor, process, nth)
        life.main = self.loop.start(process, life.live())

    # -- faults

    def _after_request(self, caller: str) -> None:
        """Some faults happen when the server has executed a certain request, before the reply is on its way."""
        name = caller.partition("#")[0]
        if name not in self._requests:
            return
        self._counted[name] += 1
        for fault in list(self._requests[name]):
            if self._counted[name] == fault.after_requests:
                self.loop.spawn(self.loop.world, self._do(fault))

    async def _inject(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.at - fault.lost_seconds))
        await self._do(fault)

    async def _do(self, fault: Fault) -> None:
        if self.is_ending:
            return
        self.happened[fault.kind] += 1
        self.trace(f"fault: {fault.kind}", fault.who, str(fault))
        await getattr(self, f"_{fault.kind}")(fault)
        self.trace(f"end of fault: {fault.kind}", fault.who)
        self._last_disturbance = self.loop.time()

    def _life(self, fault: Fault) -> actors.Life | None:
        life = self.lives.get(fault.who)
        return None if life is None or life.process.is_dead else life

    async def _weather(self, fault: Fault) -> None:
        assert fault.weather is not None
        self.network.weather = fault.weather
        await asyncio.sleep(fault.seconds)
        self.network.weather = CLEAR

    async def _kill(self, fault: Fault) -> None:
        if (life := self._life(fault)) is not None:
            self.loop.kill(life.process)
            await asyncio.sleep(fault.seconds)
            if self._may_begin(life.actor):
                self.begin(life.actor)

    def _may_begin(self, actor: Actor) -> bool:
        """Whether a process that died is started again. A query always is: nobody else has the messages it claimed."""
        return not self.is_ending or (actor.kind == "query" and not self.is_finishing)

    async def _cancel(self, fault: Fault) -> None:
        """Cancel the main task; the process lives on and begins again, with the same queue object."""
        life = self._life(fault)
        if life is None or life.main is None or life.main.done() or life.actor.kind == "query":
            return
        main = life.main
        life.give_up()  # a cancelled handler leaves its message to the lease
        main.cancel()
        while not main.done() and not life.process.is_dead:
            await asyncio.sleep(0.05)
        life.give_up()
        if not life.process.is_dead:
            life.main = self.loop.spawn(life.process, life.live())

    async def _drain(self, fault: Fault) -> None:
        """Stop a consumer as an operator does, and start it again."""
        life = self._life(fault)
        if life is None or life.actor.kind in ("producer", *OPERATORS):
            return
        ending = self.loop.spawn(life.process, life.finish_gracefully())
        while not ending.done() and not life.process.is_dead:
            await asyncio.sleep(0.05)
        if not life.process.is_dead and self.lives[fault.who] is life:
            self.loop.kill(life.process)
            if self._may_begin(life.actor):
                self.begin(life.actor)

    async def _freeze(self, fault: Fault) -> None:
        if (life := self._life(fault)) is not None:
            self.loop.freeze(life.process, fault.seconds)
            await asyncio.sleep(fault.seconds)

    async def _cut(self, fault: Fault) -> None:
        if (life := self._life(fault)) is not None:
            self.network.cut_off.add(life.process)
            await asyncio.sleep(fault.seconds)
            self.network.cut_off.discard(life.process)

    async def _forget(self, fault: Fault) -> None:
        """Somebody runs SCRIPT FLUSH."""
        self.servers[fault.node].cached = set()

    async def _full(self, fault: Fault) -> None:
        self.servers[fault.node].is_full = True
        await asyncio.sleep(fault.seconds)
        self.servers[fault.node].is_full = False

    async def _busy(self, fault: Fault) -> None:
        self.servers[fault.node].is_busy = True
        await asyncio.sleep(fault.seconds)
        self.servers[fault.node].is_busy = False

    async def _stop(self, fault: Fault) -> None:
        """A server stands still and goes on later, with the requests that have arrived meanwhile."""
        if self._is_free(server := self.servers[fault.node]):
            server.stopped_until = self.loop.time() + fault.seconds
            await asyncio.sleep(fault.seconds)

    async def _restart(self, fault: Fault) -> None:
        """The server crashes and starts again from its disk, where the last writes may be missing."""
        if not self._is_free(self.servers[fault.node]):
            return
        disk = await self._fall_behind(fault, "is_disk_behind")
        await self._go_down(fault, disk, keeps=self._confirms("confirm_fsync"))

    async def _failover(self, fault: Fault) -> None:
        """A replica becomes the primary. It may miss the last writes."""
        if not self._is_free(self.servers[fault.node]):
            return
        replica = await self._fall_behind(fault, "is_replica_behind")
        await self._go_down(fault, replica, keeps=self._confirms("confirm_replicas"))

    def _confirms(self, option: str) -> bool:
        return bool(self.plan.settings.gateway.get(option))

    async def _fall_behind(self, fault: Fault, what: str) -> tuple[Any, Account] | None:
        if not fault.lost_seconds:
            return None
        server, copy = self.servers[fault.node], (self.keyspace.copy(), self.ledger.snapshot())
        setattr(server, what, True)
        await asyncio.sleep(fault.lost_seconds)
        setattr(server, what, False)
        return copy

    def _is_free(self, server: Server) -> bool:
        """Whether no other fault keeps a second state of the server."""
        is_stopped = self.loop.time() < server.stopped_until
        return server.is_up and not (server.is_disk_behind or server.is_replica_behind or is_stopped)

    async def _go_down(self, fault: Fault, copy: tuple[Any, Account] | None, *, keeps: bool) -> None:
        server = self.servers[fault.node]
        server.is_up = False
        if server.cached is not None:
            server.cached = set()
        server.drop_connections()
        await asyncio.sleep(fault.seconds)
        if copy is not None:
            keyspace, account = copy
            owner = self.network.owner
            server.restore(keyspace, lambda key: owner(key) is server)
            self.has_lost_data = True
            names = {name for name in (*self.queue_names, RESULTS) if owner(name) is server}
            roll_back = partial(self.ledger.roll_back, account, keeps=keeps)
            self.check(roll_back if len(self.servers) == 1 else partial(roll_back, names=names))
        server.is_up = True

    async def _watch_for_idle(self) -> None:
        """Look all the time whether messages wait beside an idle consumer."""
        pause, names = 0.05 if self.plan.is_calm else 0.2, self.queue_names
        while True:
            await asyncio.sleep(pause)
            now, servers = self.loop.time(), self.servers
            self.outage.look(names)
            disturbed = not self.plan.is_calm and now - self._last_disturbance < 3
            disturbed = disturbed or not self.is_clear
            disturbed = disturbed or not all(one.is_up and one.stopped_until < now for one in servers)
            is_anybody_idle = not disturbed and any(
                # Streaming queries look once a second: nobody waits for the next message of a micro-batch.
                life.port.is_waiting and life.actor.kind != "query" and not life.process.is_dead
                for life in self.lives.values()
            )
            for name in names:
                server = self.network.owner(name)
                is_idle = is_anybody_idle and server.is_anybody_blocked(f"{name}::wakeup".encode())
                look = partial(self.ledger.look_for_idle, is_idle=is_idle, is_full=server.is_full)
                self.check(look, name, now, server.clock_us(), 0.5)


def _rules(plan: Plan) -> dict[str, Rules]:
    options = gateway_options(plan.settings)
    has_queries = any(actor.kind == "query" for actor in plan.actors)
    rules = Rules.of(options, has_keys=bool(plan.settings.keys), has_queries=has_queries, is_calm=plan.is_calm)
    results = Rules(lease_us=5_000_000, max_deliveries=0, ttl_us=0, window_us=0, is_calm=plan.is_calm)
    return {**dict.fromkeys(queue_names(plan), rules), RESULTS: results}


def queue_names(plan: Plan) -> list[str]:
    """The queue, or each of its partitions."""
    return [QUEUE, *(f"{QUEUE}::partition::{number}" for number in range(1, plan.settings.most_partitions))]


def _described(step: Step) -> str:
    """What a reader of the trace wants to know of a step."""
    if step.error is not None:
        return step.error
    reply = step.reply
    return repr(reply) if reply is None or isinstance(reply, int | str) else _short(reply)


def _short(reply: Any) -> str:
    if isinstance(reply, bytes):
        return reply.decode("ascii", "replace")[-60:] if len(reply) < 200 else f"{len(reply)} bytes"
    return f"[{', '.join(_short(one) if isinstance(one, bytes | list) else str(one) for one in reply)}]"[:160]


def run(plan: Plan, observe: Callable[[Step], None] | None = None, scripts: dict[str, Script] | None = None) -> Outcome:
    """Run one schedule, with other scripts than the library's if they are given."""
    # A library that drew from the shared generator would make schedules differ from run to run.
    random_module.seed(plan.seed)
    world = World(plan, observe)
    for server in world.servers:
        server.patched = scripts or {}
    return world.run()
