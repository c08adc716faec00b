"""The story from its first line to its last: who starts, who dies, who takes over, and what the balance says."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import redis

from redis_message_queue import GracefulInterruptHandler
from redis_message_queue.cli.demo.balance import Balance, read, unsettled
from redis_message_queue.cli.demo.crew import Crew, Worker
from redis_message_queue.cli.demo.pipeline import report_on
from redis_message_queue.cli.demo.plan import (
    CONSUMERS,
    CUSTOMERS,
    DIARY,
    LEASE_SECONDS,
    MAX_DELIVERIES,
    PRODUCERS,
    SLOW_SECONDS,
    Plan,
    open_client,
    open_queue,
)
from redis_message_queue.cli.demo.screen import Screen, open_screen
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.errors import RedisMessageQueueError

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 10.0


class StoryBrokenError(RedisMessageQueueError):
    """A process ended that was not meant to: the text says which, and its last words."""


def tell(orders: int, seed: int, *, as_json: bool, report_into: Path | None) -> int:
    """Play the demo, and report on it if there is a directory for that; 0 if the balance holds, 1 if it does not."""
    with EmbeddedRedis() as server, open_screen(orders, silent=as_json) as screen:
        screen.say(f"a private {server.flavour} {'.'.join(map(str, server.version))} answers on port {server.port}")
        plan = Plan.draw(server.url, orders, seed)
        balance = _play(plan, screen)
        screen.show(balance.rows(), balance.complaints())
        told = report_on(server.url, report_into, screen) if report_into else None
        if told:
            screen.conclude(told.page, told.complaints())
    complaints = balance.complaints() + (told.complaints() if told else [])
    if as_json:
        print(json.dumps(balance.as_dict() | {"complaints": complaints, "report": told and told.as_dict()}))
    return 1 if complaints else 0


def _play(plan: Plan, screen: Screen) -> Balance:
    interrupt = GracefulInterruptHandler(_stop_signals())
    try:
        with open_client(plan) as client, Crew(plan) as crew:
            return Story(plan, client, crew, screen, interrupt).play()
    finally:
        interrupt.reset()


def _stop_signals() -> list[signal.Signals]:
    """Ctrl-C as a flag, so that it never falls between the start of a process and the note of it."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in a background job of a script
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]


class Story:
    """Watches the crew, does to it what the plan says, and tells about it."""

    def __init__(
        self, plan: Plan, client: redis.Redis, crew: Crew, screen: Screen, interrupt: GracefulInterruptHandler
    ) -> None:
        self._plan, self._client, self._crew, self._screen = plan, client, crew, screen
        self._interrupt = interrupt
        self._queue = open_queue(client)
        self._pages_read = 0
        self._last_entry: dict[int, dict[str, Any]] = {}  # by consumer
        self._killed = 0  # the consumer that was, 0 for none yet
        self._dead_letters = 0

    def play(self) -> Balance:
        """Until everything is settled, or the time is up; then count."""
        self._begin()
        # A minute is four times what 300 orders take; 10,000 on a slow machine may have two more.
        deadline = time.monotonic() + 60 + self._plan.orders / 80
        while not self._is_over() and time.monotonic() < deadline:
            if self._interrupt.is_interrupted():
                raise KeyboardInterrupt
            self._look()
            time.sleep(_LOOK_SECONDS)
        self._look()
        graceful = self._crew.dismiss(_PATIENCE_SECONDS)
        self._screen.say(f"{graceful} of {CONSUMERS} consumers left in good order on SIGTERM")
        return Balance.count(self._client, self._queue)

    def _begin(self) -> None:
        for number in range(1, CONSUMERS + 1):
            self._crew.start("consumer", number)
        for number in range(1, PRODUCERS + 1):
            self._crew.start("producer", number)
        self._screen.say(f"{CONSUMERS} consumers start; each order is leased to one of them for {LEASE_SECONDS:g} s")
        self._screen.say(f"{PRODUCERS} producers start; both publish the same {self._plan.orders} orders, twice each")
        self._screen.say(f"the orders are of {len(CUSTOMERS)} customers, who take turns whatever each has waiting")

    def _is_over(self) -> bool:
        return not self._crew.works("producer") and unsettled(self._queue) == 0

    def _look(self) -> None:
        # The dead first and the diary after: then it holds all that they ever wrote.
        gone = self._crew.gone()
        for entry in self._new_entries():
            self._hear(entry)
        for worker in gone:
            self._mourn(worker)
        self._count()

    def _new_entries(self) -> list[dict[str, Any]]:
        entries = read(self._client, DIARY, self._pages_read)
        self._pages_read += len(entries)
        return entries

    def _hear(self, entry: dict[str, Any]) -> None:
        """What a handler wrote, as far as it belongs to the story."""
        consumer, order, again = entry["consumer"], entry["order"], entry["delivery"] > 1
        self._last_entry[consumer] = entry
        if entry["event"] == "finished":
            self._hear_finished(order, consumer, again=again)
        elif order == self._plan.poison:
            pass  # told when its consumer is found dead
        elif again:
            self._screen.say(f"the lease of order {order} ended; consumer {consumer} has it now")
        elif order == self._plan.doomed:
            self._kill(consumer, order)
        elif order == self._plan.slow:
            self._screen.say(f"order {order} takes {SLOW_SECONDS:g} s; consumer {consumer} renews its lease meanwhile")

    def _hear_finished(self, order: int, consumer: int, *, again: bool) -> None:
        if again:
            self._screen.say(f"consumer {consumer} finished order {order}: recovered", mood="good")
        elif order == self._plan.slow:
            self._screen.say(f"consumer {consumer} finished order {order}, at its first delivery", mood="good")

    def _kill(self, consumer: int, order: int) -> None:
        self._crew.kill("consumer", consumer)
        self._killed = consumer
        self._screen.say(
            f"consumer {consumer} was killed in the middle of order {order}; its lease ends in {LEASE_SECONDS:g} s",
            mood="bad",
        )

    def _mourn(self, worker: Worker) -> None:
        """A process has ended: as the story wants it, or the story ends."""
        status = worker.process.returncode
        # Taken out, so that a successor that dies at its start is not excused by it.
        entry = self._last_entry.pop(worker.number, {}) if worker.role == "consumer" else {}
        if worker.role == "producer" and status == 0:
            self._screen.say(f"{worker.name} has published everything")
        elif worker.role == "consumer" and worker.number == self._killed:
            self._killed = 0
            self._restart(worker)
        elif entry.get("order") == self._plan.poison:
            self._screen.say(
                f"order {self._plan.poison} crashed {worker.name}, delivery {entry['delivery']} of {MAX_DELIVERIES}",
                mood="bad",
            )
            self._restart(worker)
        else:
            raise StoryBrokenError(f"{worker.name} ended unexpectedly with status {status}: {worker.last_words}")

    def _restart(self, worker: Worker) -> None:
        """As a supervisor would."""
        self._crew.start(worker.role, worker.number)
        self._screen.say(f"{worker.name} is started again")

    def _count(self) -> None:
        dead = read(self._client, self._queue.key.dead_letter)
        for letter in dead[: len(dead) - self._dead_letters]:  # the newest come first
            self._screen.say(f"order {letter['order']} was delivered too often: it is a dead letter now", mood="good")
        self._dead_letters = len(dead)
        self._screen.progress(self._client.llen(self._queue.key.completed) + len(dead))
