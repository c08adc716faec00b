"""Runs several callers without threads or a loop, in every order in which their steps can happen."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import pairwise
from typing import Any

from tests.protocol.memory import SECOND, MemoryRedis
from tests.protocol.port import Turn

Actor = Coroutine[Any, Any, Any]


class Run:
    """One order of steps: at each point a choice says which of those who can go on does."""

    def __init__(
        self, memory: MemoryRedis, actors: list[Actor], choices: list[int], alike: Sequence[Sequence[int]] = ()
    ) -> None:
        self._memory = memory
        self._after = {later: earlier for group in alike for earlier, later in pairwise(group)}
        self._actors = dict(enumerate(actors))
        self._turns: dict[int, Turn] = {}
        self._choices = choices
        self.taken: list[tuple[int, int]] = []  # what was chosen, of how many
        self.order: list[int] = []

    def play(self) -> None:
        # Up to its first call nobody touches what the others see: there the order does not matter.
        for who in list(self._actors):
            self._step(who)
        while self._actors:
            self._step(self._choose(self._ready()))

    def _ready(self) -> list[int]:
        ready = [who for who, turn in self._turns.items() if turn.is_ready(self._memory.clock_us)]
        ready = [who for who in ready if who in self.order or self._after.get(who, who) in (who, *self.order)]
        if not ready:
            self._let_time_pass(min(turn.until_us for turn in self._turns.values() if turn.until_us is not None))
            return self._ready()
        return ready

    def _let_time_pass(self, until_us: int) -> None:
        self._memory.pass_time((until_us - self._memory.clock_us) / SECOND)

    def _choose(self, ready: list[int]) -> int:
        at = len(self.taken)
        chosen = self._choices[at] if at < len(self._choices) else 0
        self.taken.append((chosen, len(ready)))
        self.order.append(ready[chosen])
        return ready[chosen]

    def _step(self, who: int) -> None:
        turn = self._turns.get(who)
        if turn is not None and turn.sleeps_until_us > self._memory.clock_us:
            self._let_time_pass(turn.sleeps_until_us)
        try:
            self._turns[who] = self._actors[who].send(None)
        except StopIteration:
            del self._actors[who]
            self._turns.pop(who, None)


def every_order(
    begin: Callable[[], tuple[MemoryRedis, list[Actor], Callable[[], None]]], alike: Sequence[Sequence[int]] = ()
) -> int:
    """Begin anew and play, once for each order there is; return how many there were.

    ``begin`` gives a memory, its actors, and a check that is made after each run. Of actors that are ``alike``, the
    first begins first: if another did, everything would be the same under other names.
    """
    runs = 0
    for choices in _Choices():
        memory, actors, check = begin()
        run = Run(memory, actors, choices.prefix, alike)
        try:
            run.play()
            check()
        except BaseException as error:
            error.add_note(f"in the order of steps {run.order}")
            raise
        finally:
            for actor in actors:
                actor.close()
        choices.made(run.taken)
        runs += 1
    return runs


class _Choices:
    """Counts through all choices like an odometer whose wheels have the sizes that the runs turn up."""

    def __init__(self) -> None:
        self.prefix: list[int] = []
        self._is_over = False

    def __iter__(self) -> Iterator["_Choices"]:
        while not self._is_over:
            yield self

    def made(self, taken: list[tuple[int, int]]) -> None:
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken = taken[:-1]
        self._is_over = not taken
        self.prefix = [*(chosen for chosen, _ in taken[:-1]), *(chosen + 1 for chosen, _ in taken[-1:])]
