"""The scenario of the demo: consumers that crash and are killed, and producers that publish everything twice."""

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Self

import redis

from redis_message_queue import GracefulInterruptHandler, RedisMessageQueue
from redis_message_queue.cli.demo.balance import Balance
from redis_message_queue.cli.exit_status import CommandFailedError

QUEUE = "orders"
_PRODUCERS, _CONSUMERS = 2, 3
_ROUNDS = 2  # how often every producer publishes every order
_CUSTOMERS = ("north", "south", "west")
_LEASE_SECONDS = 2.0
_SLOW_SECONDS = 1.5 * _LEASE_SECONDS
_MAX_DELIVERIES = 3
_KILL_SECONDS = 30.0  # how long a handler waits for the SIGKILL that the scenario has for it
_CHECK_SECONDS = 0.05
_SHUTDOWN_SECONDS = 10.0
# Next to the queue, so that the balance need not trust the queue: what publish() returned, and what the handlers did.
_ANSWERS, _HANDLER_LOG = "demo::answers", "demo::handler-log"
_SETTINGS = "REDIS_MESSAGE_QUEUE_DEMO"  # an environment variable: anybody could read the password in the arguments
Say = Callable[..., None]  # with a text and a style


@dataclass(frozen=True, slots=True)
class Scenario:
    """The orders 1 to `orders`, three of which cause trouble."""

    url: str
    orders: int
    poison: int  # crashes every process that handles it
    killed: int  # the first consumer that handles it is killed
    slow: int  # takes longer than its lease

    @classmethod
    def create(cls, url: str, orders: int, seed: int) -> Self:
        """The same seed gives the same trouble, early enough to leave time for the recovery."""
        early = range(1, max(3, orders * 2 // 3) + 1)
        return cls(url, orders, *sorted(random.Random(seed).sample(early, 3)))


def run(scenario: Scenario, say: Say, on_progress: Callable[[int], None]) -> Balance:
    """Run the scenario until every order is settled, or for a minute and more; then count."""
    # Ctrl-C only sets a flag, so that it cannot interrupt the start of a process. In a background job it is ignored.
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    interrupt = GracefulInterruptHandler([signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT])
    stopped = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(interrupt.reset)
        client = stack.enter_context(redis.Redis.from_url(scenario.url, decode_responses=True))
        threads = stack.enter_context(ThreadPoolExecutor(_PRODUCERS))
        stack.callback(stopped.set)
        consumers = stack.enter_context(DemoProcesses(scenario))
        for number in range(1, _CONSUMERS + 1):
            consumers.start(number)
        say(f"{_CONSUMERS} consumers start; each order is leased for {_LEASE_SECONDS:g} s")
        producing = {n: threads.submit(_produce, scenario, n, client, stopped) for n in range(1, _PRODUCERS + 1)}
        say(f"{_PRODUCERS} producers start; both publish the same {scenario.orders} orders twice")
        say(f"the orders are from {len(_CUSTOMERS)} customers, who are served in turn")
        queue, monitor, log_length = _open_queue(client), _Monitor(scenario, consumers, say), 0
        # 300 orders take about 15 seconds; 10,000 on a slow machine may take three minutes.
        deadline, over = time.monotonic() + 60 + scenario.orders / 80, False
        while not over:
            if interrupt.is_interrupted():
                raise KeyboardInterrupt
            for number in [number for number, future in producing.items() if future.done()]:
                producing.pop(number).result()
                say(f"producer {number} has published everything")
            stats = queue.stats(oldest=False)
            over = time.monotonic() > deadline or not (producing or stats.pending or stats.processing)
            ended = consumers.ended()  # first: then the log has everything that these processes wrote
            entries = _read(client, _HANDLER_LOG, log_length)
            log_length += len(entries)
            monitor.update(entries, ended, _read(client, queue.key.dead_letter))
            on_progress(stats.completed + stats.dead_letters)
            time.sleep(_CHECK_SECONDS)
        say(f"{consumers.terminate(_SHUTDOWN_SECONDS)} of {_CONSUMERS} consumers ended cleanly on SIGTERM")
        return _count(client, queue)


def _count(client: redis.Redis, queue: RedisMessageQueue) -> Balance:
    def orders(key: str, **wanted: Any) -> list[int]:
        return [entry["order"] for entry in _read(client, key) if entry.items() >= wanted.items()]

    stats = queue.stats()
    return Balance(
        accepted=orders(_ANSWERS, accepted=True),
        suppressed=orders(_ANSWERS, accepted=False),
        finished=orders(_HANDLER_LOG, event="finished"),
        finished_again=orders(_HANDLER_LOG, event="finished", again=True),
        completed=orders(queue.key.completed),
        dead=orders(queue.key.dead_letter),
        left_behind=stats.pending + stats.processing + stats.failed,
    )


def _read(client: redis.Redis, key: str, start: int = 0) -> list[dict[str, Any]]:
    return [json.loads(value) for value in client.lrange(key, start, -1)]


class _Monitor:
    """Prints what happens to the orders that cause trouble, kills a consumer, and restarts those that crashed."""

    def __init__(self, scenario: Scenario, consumers: "DemoProcesses", say: Say) -> None:
        self._scenario, self._consumers, self._say = scenario, consumers, say
        self._last_entry: dict[int, dict[str, Any]] = {}  # by consumer
        self._dead_letters = 0

    def update(self, entries: list[dict[str, Any]], ended: dict[int, int], dead: list[dict[str, Any]]) -> None:
        for entry in entries:
            self._last_entry[entry["consumer"]] = entry
            self._show_entry(**entry)
        for number, status in ended.items():
            self._handle_exit(number, status)
        for letter in dead[: len(dead) - self._dead_letters]:  # the newest come first
            self._say(f"order {letter['order']} was delivered too often: it is a dead letter now", "green")
        self._dead_letters = len(dead)

    def _show_entry(self, event: str, order: int, delivery: int, again: bool, consumer: int) -> None:
        if event == "finished" and again:
            self._say(f"consumer {consumer} finished order {order}: recovered", "green")
        elif event == "finished" and order == self._scenario.slow:
            self._say(f"consumer {consumer} finished order {order} at its first delivery", "green")
        elif event == "finished" or order == self._scenario.poison:
            pass
        elif again:
            self._say(f"the lease of order {order} expired; consumer {consumer} has the order now")
        elif order == self._scenario.killed:
            self._consumers.kill(consumer)
            self._say(f"consumer {consumer} was killed while it handled order {order}", "red")
            self._say(f"no other consumer gets order {order} until its lease expires, in {_LEASE_SECONDS:g} s")
        elif order == self._scenario.slow:
            self._say(f"order {order} takes {_SLOW_SECONDS:g} s; consumer {consumer} keeps renewing its lease")

    def _handle_exit(self, number: int, status: int) -> None:
        # Removed, so that a restarted consumer that fails at its start is not excused by it.
        entry = self._last_entry.pop(number, {"order": None})
        order = entry["order"]
        if order not in (self._scenario.poison, self._scenario.killed):
            raise CommandFailedError(f"consumer {number} exited unexpectedly with status {status}")
        if order == self._scenario.poison:
            delivery = f"delivery {entry['delivery']} of {_MAX_DELIVERIES}"
            self._say(f"order {order} crashed consumer {number} at {delivery}", "red")
        self._consumers.start(number)
        self._say(f"consumer {number} is restarted")


class DemoProcesses:
    """The consumers, by their numbers; leaving its `with` kills those that still run."""

    def __init__(self, scenario: Scenario) -> None:
        self._environment = os.environ | {_SETTINGS: json.dumps(asdict(scenario))}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            with process:  # waits for it, and closes the pipe
                process.kill()

    def start(self, number: int) -> None:
        """Start an interpreter in a session of its own, which the terminal's Ctrl-C does not reach."""
        self._processes[number] = subprocess.Popen(
            [sys.executable, "-m", __name__, str(number)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self, number: int) -> None:
        """Send SIGKILL, as the kernel does when memory runs out."""
        self._processes[number].kill()

    def ended(self) -> dict[int, int]:
        """Return the number and the exit status of each process that ended since the last call."""
        found = {}
        for number, process in list(self._processes.items()):
            if process.poll() is not None:
                with self._processes.pop(number):
                    found[number] = process.returncode
        return found

    def terminate(self, timeout_seconds: float) -> int:
        """Send SIGTERM to all, and return how many ended well and in time."""
        deadline = time.monotonic() + timeout_seconds
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        return sum(process.poll() == 0 for process in self._processes.values())


def _open_queue(client: redis.Redis, **options: Any) -> RedisMessageQueue:
    """Open the queue; the number of an order is its deduplication key."""
    return RedisMessageQueue(
        QUEUE,
        client=client,
        deduplication=True,
        get_deduplication_key=lambda message: f"order-{message['order']}",
        visibility_timeout_seconds=_LEASE_SECONDS,
        heartbeat_interval_seconds=_LEASE_SECONDS / 4,
        max_delivery_count=_MAX_DELIVERIES,
        enable_completed_queue=True,
        max_completed_length=None,  # the balance counts all of them
        enable_failed_queue=True,
        max_failed_length=None,
        journal=True,
        **options,
    )


def _produce(scenario: Scenario, number: int, client: redis.Redis, stopped: threading.Event) -> None:
    """Publish every order, again and again, as a program with retries does; takes about five seconds."""
    queue = _open_queue(client)
    for attempt in range(1, _ROUNDS + 1):
        for order in range(1, scenario.orders + 1):
            # Half of the orders are from one customer: the others still get their turns.
            customer = _CUSTOMERS[0] if order % 2 else _CUSTOMERS[1 + order // 2 % 2]
            accepted = queue.publish({"order": order, "producer": number, "attempt": attempt}, tenant=customer)
            client.rpush(_ANSWERS, json.dumps({"order": order, "accepted": accepted}))
            if stopped.wait(min(0.02, 5 / (_ROUNDS * scenario.orders)) * random.uniform(0, 2)):
                return


def _consume(scenario: Scenario, number: int, client: redis.Redis) -> None:
    """Handle orders until SIGTERM, and log what the handler does; takes about ten seconds."""
    interrupt = GracefulInterruptHandler([signal.SIGTERM])
    queue = _open_queue(client, interrupt=interrupt)

    def handle(payload: str | bytes) -> None:
        message = queue.current_message()
        assert message is not None
        order, delivery = json.loads(payload)["order"], message.delivery_count
        entry = {"order": order, "delivery": delivery, "again": delivery > 1, "consumer": number}
        client.rpush(_HANDLER_LOG, json.dumps(entry | {"event": "started"}))
        if order == scenario.poison:
            os._exit(1)  # an exception could be caught; a bug in a C extension ends the process like this
        if order == scenario.killed and delivery == 1:
            time.sleep(_KILL_SECONDS)
        handler_seconds = min(0.1, 10 * _CONSUMERS / scenario.orders) * random.uniform(0.5, 1.5)
        time.sleep(_SLOW_SECONDS if order == scenario.slow else handler_seconds)
        if not message.lease_lost:  # otherwise another consumer has it by now, and finishes it
            client.rpush(_HANDLER_LOG, json.dumps(entry | {"event": "finished"}))

    while not interrupt.is_interrupted():
        queue.process_message_callback(handle)


def _exit_without_demo() -> None:
    """Only the demo holds the other end of our stdin: the read returns when the demo is gone."""
    with contextlib.suppress(OSError):
        os.read(sys.stdin.fileno(), 1)
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_exit_without_demo, daemon=True).start()
    logging.getLogger("redis_message_queue").addHandler(logging.NullHandler())  # the demo prints what happens
    settings = Scenario(**json.loads(os.environ[_SETTINGS]))
    with redis.Redis.from_url(settings.url, decode_responses=True) as opened:
        _consume(settings, int(sys.argv[1]), opened)
