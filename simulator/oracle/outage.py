"""Outages: what loops must still do while a node of a cluster is away."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from redis_message_queue.values.errors import CleanupFailedError, RetryBudgetExhaustedError

if TYPE_CHECKING:
    from simulator.actors import Life
    from simulator.world import World

# A loop waits half a second for a node that stands still, a few times, and a second for a wake-up that was lost.
_LONGEST = 4.0


class OutageWatch:
    """Knows which nodes have answered all the time, and what each loop has done meanwhile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._answers_since = [-math.inf] * len(world.servers)
        self._clear_since = -math.inf  # the weather
        self._ready_since: dict[str, float] = {}  # partitions of nodes that answer, with messages that wait
        self._quiet_since: dict[str, float] = {}  # loops by process: when the last handler began or ended
        self._at_work: Counter[str] = Counter()  # handlers by process
        self._handled_by: dict[bytes, tuple[Life, float]] = {}
        self._began_at: dict[str, float] = {}  # the last handlers by process
        self._none_answered_at = -math.inf

    @property
    def is_possible(self) -> bool:
        return len(self._world.servers) > 1

    def handlers_begin(self, life: Life, payloads: list[bytes]) -> None:
        """A handler gets messages. Nobody else has one that its loop renews, if its node answers."""
        now = self._world.loop.time()
        for payload in payloads:
            before = self._handled_by.get(payload)
            if before is not None and self._must_have_kept(payload, *before, life):
                process = before[0].process
                self._world.violated("outage", f"{process} lost the lease of {payload.decode()}, whose node answers")
            self._handled_by[payload] = (life, now)
        self._quiet_since[life.process.name] = self._began_at[life.process.name] = now
        self._at_work[life.process.name] += 1

    def handlers_end(self, life: Life, payloads: list[bytes]) -> None:
        """A handler has ended, in whatever way."""
        for payload in payloads:
            if self._handled_by.get(payload, (None,))[0] is life:
                del self._handled_by[payload]
        self._quiet_since[life.process.name] = self._world.loop.time()
        self._at_work[life.process.name] -= 1

    def _must_have_kept(self, payload: bytes, holder: Life, began: float, other: Life) -> bool:
        is_well = self.is_possible and holder.actor.kind == "run"
        is_well = is_well and not (holder.process.is_dead or holder.process.frozen_seconds)
        node = self._node_of(self._world.ledger.account.home[payload])
        return is_well and holder is not other and began > max(self._answers_since[node], self._clear_since)

    def _node_of(self, queue: str) -> int:
        return self._world.servers.index(self._world.network.owner(queue))

    def look(self, queues: list[str]) -> None:
        """Look all the time whether a loop leaves messages alone whose node answers."""
        if not self.is_possible:
            return
        world, now = self._world, self._world.loop.time()
        if not world.is_clear:
            self._clear_since = now
        for node, server in enumerate(world.servers):
            if not server.is_up or server.stopped_until > now:
                self._answers_since[node] = now
        if all(since == now for since in self._answers_since):
            self._none_answered_at = now
        for queue in queues[: world.partitions()]:
            if not world.ledger.is_open(queue):  # it can be opened while the node of the first partition answers
                self._answers_since[self._node_of(queue)] = now
        for queue in queues:
            has_messages = world.ledger.has_messages(queue, world.loop.clock_us())
            if has_messages and world.is_clear and self._answers_since[self._node_of(queue)] < now:
                self._ready_since.setdefault(queue, now)
            else:
                self._ready_since.pop(queue, None)
        for life in world.lives.values():
            name = life.process.name
            is_working = life.is_at_work and life.actor.kind == "run" and not life.finishing
            if (
                not is_working
                or life.queue.partitions != world.partitions()
                or self._at_work[name]
                or life.process.frozen_until > now
            ):
                self._quiet_since.pop(name, None)
                continue
            quiet_since = self._quiet_since.setdefault(name, now)
            for queue, since in self._ready_since.items():
                if (waited := now - max(since, quiet_since)) > _LONGEST:
                    text = f"{life.process} has done nothing for {waited:.1f} s, and messages wait in {queue}"
                    world.violated("outage", text)

    def loop_raised(self, life: Life, error: Exception) -> None:
        """`run()` has ended. Only the absence of all nodes is a reason, since nothing is refused here."""
        # The first partition tells whoever has an old number that the queue has grown.
        if not self.is_possible or life.process.frozen_seconds or life.queue.partitions != self._world.partitions():
            return
        # A node that has just come back may have to wait until the request to another one is over.
        seconds = life.queue._protocol.store.options.retry_budget_seconds + 2 * life.port.socket_timeout
        began = self._world.loop.time() - seconds
        answered = any(since < began for since in self._answers_since) and self._clear_since < began
        # A loop that has given up ends when its last handler has ended, which may be long after that.
        answered = answered and self._none_answered_at < self._began_at.get(life.process.name, 0.0)
        # What Redis refuses is a reason, and it refuses those that have another number of partitions.
        is_refused = isinstance(error, CleanupFailedError) and not self._world.plan.settings.grows_to
        if is_refused or (isinstance(error, RetryBudgetExhaustedError) and answered):
            self._world.violated("outage", f"run() of {life.process} ended, and a node answers: {error}")
