"""Many messages in flight: what they weigh in Redis, and what it costs to acknowledge the oldest."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis

from bench.contender import Contender, Worker
from bench.course import Course
from bench.meter import Cost
from bench.placement import place
from bench.plan import Plan
from redis_message_queue.embedded import EmbeddedRedis

MANY, FEW = "many", "few"
# Ten acks in a row with 10 in flight on average: from 15 down to 5, and up again before the next ten.
_ACKS, _FEW_HELD = 10, 15
# So many between two steps of the progress bar, or in one pipeline.
_BATCH = 1_000

Weight = dict[str, float]


@dataclass
class Site:
    """A contender with a server to itself, so that all the memory there is its own.

    The few have a process to themselves: what many deliveries cost their own process must not be in the yardstick.
    """

    many: Worker
    few: Worker
    server: EmbeddedRedis
    control: redis.Redis
    weights: dict[str, Weight] = field(default_factory=dict)
    acks: dict[str, list[Cost]] = field(default_factory=lambda: {MANY: [], FEW: []})

    @property
    def name(self) -> str:
        return self.many.name

    @property
    def workers(self) -> dict[str, Worker]:
        return {MANY: self.many, FEW: self.few}


@contextmanager
def site(contender: Contender, server: EmbeddedRedis) -> Iterator[Site]:
    with (
        Worker(contender, server.url) as many,
        Worker(contender, server.url) as few,
        server.client() as control,
    ):
        yield Site(many, few, server, control)


def measure(sites: list[Site], plan: Plan, course: Course) -> None:
    """Pile up at all sites at once, as nothing is timed there; then take turns."""
    course.stage("memory", len(sites) * (plan.keys + 2 * plan.in_flight))
    with ThreadPoolExecutor(len(sites)) as pool:
        list(pool.map(lambda site: _weigh(site, plan, course), sites))
    if "ack" in plan.measures:
        _acknowledge([site for site in sites if "claimed" in site.weights], plan, course)


def _weigh(site: Site, plan: Plan, course: Course) -> None:
    """Bytes a message: pending, claimed, and what a deduplication key adds."""
    ask = site.many.ask
    with course.attempt(f"{site.name}, memory"):
        empty = _warm_up(site)
        for count in _batches(plan.keys, course):
            ask("slice", colour="sync", workload="dedup", count=count)
        once = _each(empty, _weight(site.control), plan.keys)
        site.control.flushall()
        for count in _batches(plan.in_flight, course):
            ask("pile", name=MANY, publish=count)
        pending = _each(empty, _weight(site.control), plan.in_flight)
        for count in _batches(plan.in_flight, course):
            ask("pile", name=MANY, claim=count)
        claimed = _each(empty, _weight(site.control), plan.in_flight)
        key = {how: once[how] - pending[how] for how in once}
        site.weights.update({"pending": pending, "claimed": claimed, "dedup key": key})


def _warm_up(site: Site) -> Weight:
    """Open the connections and load the scripts; the weight of a server that holds nothing else."""
    site.many.ask("slice", colour="sync", workload="dedup", count=1)
    site.many.ask("pile", name="warm", publish=1, claim=1)
    site.many.ask("ack_oldest", name="warm", count=1)
    site.control.flushall()
    return _weight(site.control)


def _acknowledge(sites: list[Site], plan: Plan, course: Course) -> None:
    """Ten acks of every contender with many in flight and with few, in turn."""
    course.stage("acks", len(sites) * plan.ack_rounds)
    for site in sites:
        site.few.ask("pile", name=FEW, publish=_FEW_HELD, claim=_FEW_HELD)
        for worker in site.workers.values():
            place(plan.placements[0], client=worker.pid, server=site.server.pid)
    for _ in range(plan.ack_rounds):
        for site in sites:
            course.step()
            for name, worker in site.workers.items():
                site.acks[name].append(_ten_acks(worker, name))


def _ten_acks(worker: Worker, name: str) -> Cost:
    cost = worker.ask("ack_oldest", name=name, count=_ACKS)
    worker.ask("pile", name=name, publish=_ACKS, claim=_ACKS)
    return {clock: seconds / _ACKS for clock, seconds in cost.items()}


def _batches(total: int, course: Course) -> Iterator[int]:
    for done in range(0, total, _BATCH):
        count = min(_BATCH, total - done)
        yield count
        course.step(count)


def _weight(control: redis.Redis) -> Weight:
    """The server's own figure, and the sum of what it says of each key."""
    return {"used": control.info("memory")["used_memory"], "keys": sum(_keys(control))}


def _keys(control: redis.Redis) -> Iterator[int]:
    pipeline = control.pipeline(transaction=False)
    for key in control.scan_iter(count=_BATCH):
        pipeline.memory_usage(key, samples=0)
        if len(pipeline) == _BATCH:
            yield from pipeline.execute()
    yield from pipeline.execute()


def _each(before: Weight, after: Weight, count: int) -> Weight:
    return {how: (after[how] - before[how]) / count for how in before}
