"""Settlements of a loop that Redis has not answered: they are retried beside it, for each partition by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_message_queue.protocol.calls import UntilItStepsAside
from redis_message_queue.protocol.event_emitter import log, named
from redis_message_queue.protocol.port import BackgroundTask, Pause

if TYPE_CHECKING:
    from redis_message_queue.protocol.drain import Work
    from redis_message_queue.protocol.parts import Part
    from redis_message_queue.protocol.queue import QueueProtocol

_LOOK_SECONDS = 0.2  # between two probes: a replica that was promoted is served within a second


class _Late(NamedTuple):
    """A settlement that has stepped aside, when its retries end, and its entry in the gate: a drain waits for it."""

    work: Coroutine[Any, Any, None]
    ends_at: float
    under_way: Work


class LateSettlements:
    """What a loop has settled and Redis has not confirmed. The loop goes on meanwhile, and so do other partitions.

    A partition that does not answer has a background task. It asks every moment whether the partition is back, and
    continues its settlements then, or when their retry budget is over.
    """

    def __init__(
        self,
        queue: QueueProtocol,
        lock: AbstractContextManager[Any],
        is_over: Callable[[], bool],
        on_trouble: Callable[[Exception], None],
    ) -> None:
        self._queue = queue
        self._lock = lock
        self._is_over = is_over  # whether nobody waits for the loop any more
        self._on_trouble = on_trouble  # called with what Redis refused
        self._waiting: dict[Part, deque[_Late]] = {}
        self._tasks: dict[Part, BackgroundTask | None] = {}
        self._returned = 0  # how often a part has answered again
        self._is_closing = False

    def __len__(self) -> int:
        return sum(map(len, list(self._waiting.values())))

    async def settle(self, part: Part | None, work: Coroutine[Any, Any, None]) -> None:
        """Run the settlement, until it has to be retried at the longest: the rest of it happens beside the loop."""
        if await UntilItStepsAside(work):
            return
        part = part or self._queue.store.parts[0]
        late = _Late(work, self._queue.port.now() + part.calls.plan.budget_seconds, self._queue.gate.add())
        with self._lock:
            self._waiting.setdefault(part, deque()).append(late)
        self.watch(part)

    def watch(self, part: Part) -> bool:
        """Find out beside the loop when a part answers again. Returns whether somebody does."""
        with self._lock:
            if part in self._tasks:
                return True
            if self._is_closing and not self._waiting.get(part):
                return False
            part.calls.watchers += 1
            self._tasks[part] = None
            task = self._queue.port.spawn(partial(self._serve, part))
            if part in self._tasks:  # else it has ended already
                self._tasks[part] = task
        why = "" if part.calls.away is None else f" ({named(part.calls.away)})"
        self._log(WARNING, part, f"does not answer{why}; its settlements are retried beside the loop")
        return True

    async def _serve(self, part: Part, pause: Pause) -> None:
        """Continue the settlements of one part when it is back, until there are none."""
        calls = part.calls
        try:
            while True:
                await self._rest()
                if calls.away is not None and await calls.probe():
                    self._returned += 1
                    self._log(INFO, part, "answers again")
                await self._continue(part)
                with self._lock:
                    is_done = not self._waiting.get(part) and (calls.away is None or self._is_closing)
                    if is_done or self._is_over():
                        self._leave(part)
                        return
        except BaseException:
            self._leave(part)
            raise

    def _leave(self, part: Part) -> None:
        """The background task ends. What it leaves behind after a Ctrl-C is for the leases."""
        part.calls.watchers -= 1
        self._tasks.pop(part, None)
        for late in self._waiting.pop(part, ()):
            self._queue.gate.discard(late.under_way)

    async def _rest(self) -> None:
        """Sleep until the next probe: sooner if another partition answers again, which may be on the same node.

        Each probe that fails may make a client ask for the nodes of the cluster, so all of them share one pace. The
        sleep is not a pause of the task: a stop does not hurry settlements.
        """
        returned = self._returned
        for _ in range(len(self._tasks) or 1):
            await self._queue.port.sleep(_LOOK_SECONDS)
            if returned != self._returned:
                return

    async def _continue(self, part: Part) -> None:
        """Continue settlements for as long as Redis answers, and end those whose time is over."""
        waiting, now = self._waiting.get(part) or deque(), self._queue.port.now
        while waiting and (part.calls.away is None or now() >= min(waiting[0].ends_at, self._queue.gate.give_up_at())):
            try:
                if not await UntilItStepsAside(waiting[0].work):
                    return
            except Exception as error:
                self._on_trouble(error)
            self._queue.gate.discard(waiting.popleft().under_way)

    async def close(self) -> None:
        """Wait until all settlements are confirmed or left to their leases."""
        self._is_closing = True
        while tasks := [task for task in self._tasks.values() if task is not None]:
            for task in tasks:
                await task.end()

    def _log(self, level: int, part: Part, text: str) -> None:
        name = self._queue.options.name
        what = f"partition {part.number}" if len(self._queue.store.parts) > 1 else "Redis"
        extra = {"queue": name, "address": part.calls.port.address}
        log.log(level, "%s: %s %s", name, what, text, extra=extra)
