"""What the league measures beside the loss test: costs, delays and memory."""

import os
import random
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from bench.contender import ContenderFailed
from bench.league.processes import Producer, Site, Worker, wait_until
from bench.meter import Cost
from redis_message_queue.embedded import EmbeddedRedis

# At every phase of a worker that polls at an interval of up to half a second.
_GAP_SECONDS = (0.02, 0.52)
BATCH = 100
# How many messages are in flight when their memory is measured.
_IN_FLIGHT = 8
PUBLISHES = {"publish": 200, "publish_once": 200, "publish_batch": 2_000, "publish_crowd": 2_000}
CALLERS = 100  # of the crowd that publishes, and handlers of a worker that waits for something else
HANDLER_SECONDS = (0.01, 0.1)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int = 6
    messages: float = 1.0  # of the usual number in a slice
    idle_samples: int = 40
    load_samples: int = 500
    load_per_second: float = 100.0
    stored: int = 1_000
    loss_messages: int = 400
    loss_grace_seconds: float = 90.0
    lease_seconds: int = 5
    warm_up_seconds: float = 6.0


QUICK = Plan(
    rounds=2, messages=0.2, idle_samples=8, load_samples=60, stored=200, loss_messages=120, loss_grace_seconds=30.0
)


def costs(pairs: "list[tuple[Stand, Stand]]", plan: Plan) -> dict[str, dict[str, list[Cost]]]:
    """The cost of a message in each workload and round, of a member and of raw redis-py in turn."""
    found: dict[str, dict[str, list[Cost]]] = defaultdict(lambda: {"own": [], "raw": []})
    for turn in range(plan.rounds + 1):
        for own, raw in pairs:
            for workload in own.workloads:
                sides = [("own", own), ("raw", raw)]
                for side, stand in sides[:: 1 if turn % 2 else -1]:
                    cost = stand.slice(workload, plan)
                    if turn:  # the first round opens connections and loads scripts
                        found[workload][side].append(cost)
    return found


class Stand:
    """A member with a server, a producer and a worker, on one CPU. The worker is stopped while others are measured."""

    def __init__(self, site: Site, server: EmbeddedRedis, stack: ExitStack) -> None:
        os.sched_setaffinity(server.pid, site.cpus)
        self._site = site
        self._control: redis.Redis = stack.enter_context(server.client())
        self.producer = stack.enter_context(Producer(site))
        self._worker = stack.enter_context(ready(site, self.producer))
        stack.enter_context(self._worker.stopped())
        described = self.producer.request("describe", packages=site.member.shown_packages)
        self.versions: dict[str, str] = described["versions"]
        self.workloads = ["consume_batch"] if site.batch > 1 else [*described["workloads"], "consume"]

    def slice(self, workload: str, plan: Plan) -> Cost:
        """The cost of a message, in seconds."""
        if workload in PUBLISHES:
            # No more than its worker can handle afterwards in some seconds.
            most = min(PUBLISHES[workload], self._site.member.consume)
            messages = max(BATCH, int(most * plan.messages))
            cost = self._publish(workload, messages)
        else:
            messages = max(20, int(self._site.member.consume * plan.messages))
            cost = self._consume(messages)
        return {clock: seconds / messages for clock, seconds in cost.items()}

    def _publish(self, workload: str, messages: int) -> Cost:
        if workload == "publish_crowd":
            cost: Cost = self.producer.request("crowd", messages=messages, callers=CALLERS)
        else:
            cost = self.producer.request("slice", workload=workload, messages=messages)
        with self._worker.continued():
            self._worker.wait_for(messages)
        return cost

    def _consume(self, messages: int) -> Cost:
        worker = self._worker
        self.producer.request("slice", workload="publish", messages=messages)
        server, client, began = self._server_cpu(), worker.cpu_seconds(), time.monotonic_ns()
        with worker.continued():
            handled = worker.wait_for(messages)
            cost = {"server": self._server_cpu() - server, "client": worker.cpu_seconds() - client}
        return cost | {"wall": (max(at for _, at in handled) - began) / 1e9}

    def _server_cpu(self) -> float:
        used = self._control.info("cpu")
        return float(used["used_cpu_sys"] + used["used_cpu_user"])


def ready(site: Site, producer: Producer) -> Worker:
    """A worker that has handled a message."""
    worker = Worker(site)
    try:
        # Some brokers deliver only what is published after their worker has created its group.
        if not wait_until(lambda: _handles(worker, producer), 30) or worker.has_ended():
            raise ContenderFailed(f"{site.member.name}: its worker handles nothing; {worker.last_words()}")
        time.sleep(0.5)  # the rest of those messages
        worker.log.new()
    except BaseException:
        worker.__exit__()
        raise
    return worker


def _handles(worker: Worker, producer: Producer) -> bool:
    producer.request("now")
    return wait_until(lambda: bool(worker.log.new()) or worker.has_ended(), 2)


def delays(site: Site, server: EmbeddedRedis, plan: Plan) -> dict[str, list[float]]:
    """Seconds from just before a publish to the handler: of an idle worker, and at an even rate of messages."""
    with Producer(site) as producer, ready(site, producer) as worker:
        idle = []
        for _ in range(plan.idle_samples):
            time.sleep(random.uniform(*_GAP_SECONDS))
            producer.request("now")
            idle += _delays(worker.wait_for(1))
        producer.request("paced", messages=plan.load_samples, per_second=plan.load_per_second)
        return {"idle": idle, "load": _delays(worker.wait_for(plan.load_samples))}


def _delays(handled: list[tuple[str, int]]) -> list[float]:
    return [(at - int(number)) / 1e9 for number, at in handled]


def waiting_handlers(site: Site, server: EmbeddedRedis, plan: Plan) -> dict[str, float]:
    """Messages a second by a hundred handlers at a time that only wait, by how long each of them waits."""
    found = {}
    for seconds in HANDLER_SECONDS if site.member.crowd is not None else ():
        crowd = replace(site, pause_seconds=seconds, concurrency=CALLERS, log=Path(f"{site.log}.{seconds}"))
        messages = max(CALLERS, int(2 * CALLERS * plan.messages / max(seconds, 0.05)))
        with Producer(crowd) as producer, ready(crowd, producer) as worker, worker.stopped():
            producer.request("slice", workload="publish", messages=messages)
            began = time.monotonic_ns()
            with worker.continued():
                handled = worker.wait_for(messages)
            found[f"{seconds:g}"] = messages / (max(at for _, at in handled) - began) * 1e9
    return found


def memory(site: Site, server: EmbeddedRedis, plan: Plan) -> dict[str, float]:
    """Bytes of all keys by MEMORY USAGE, for each message that waits and for each that is in flight."""
    with server.client() as control, Producer(site) as producer:
        holding = replace(site, pause_seconds=3_600.0, log=Path(f"{site.log}.holding"))
        with ready(site, producer) as worker, worker.stopped():
            empty = _all_keys(control)
            producer.request("slice", workload="publish", messages=plan.stored)
            waiting = (_all_keys(control) - empty) / plan.stored
        control.flushall()
        with ExitStack() as stack:
            # A worker that handles one message at a time needs company, or the figure is that of the worker itself.
            workers = [stack.enter_context(Worker(holding)) for _ in range(_IN_FLIGHT // site.member.in_flight)]
            time.sleep(plan.warm_up_seconds)  # until they have written what an idle worker writes
            empty = _all_keys(control)
            producer.request("slice", workload="publish", messages=_IN_FLIGHT)
            started: set[str] = set()

            def all_started() -> bool:
                started.update(number for _, number, _ in workers[0].log.new())
                return len(started) >= _IN_FLIGHT

            if not wait_until(all_started, 30):
                raise ContenderFailed(f"{len(started)} of {_IN_FLIGHT} handlers started; {workers[0].last_words()}")
            return {"waiting": waiting, "in flight": (_all_keys(control) - empty) / _IN_FLIGHT}


def _all_keys(control: redis.Redis) -> int:
    keys: Any = control.scan_iter(count=1_000)
    sizes: Any = [control.memory_usage(key, samples=0) for key in keys]
    return sum(size or 0 for size in sizes)
