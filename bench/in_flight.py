"""Many messages in flight: how much Redis memory they take, and what it costs to acknowledge the oldest."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis

from bench.contender import Contender, Worker
from bench.meter import Cost
from bench.placement import place
from bench.plan import Plan
from bench.progress import RunProgress
from redis_message_queue.embedded import EmbeddedRedis

MANY, FEW = "many", "few"
# Ten acks in a row, from 15 messages in flight down to 5: 10 on average. Then up to 15 again.
_ACKS, _FEW_HELD = 10, 15
# Messages between two steps of the progress bar, or commands in one pipeline.
_BATCH = 1_000

Memory = dict[str, float]


@dataclass
class Site:
    """A contender with its own server, so that all of the server's memory belongs to it.

    Two processes: one holds many messages, one holds few. Otherwise the cost of many would show in the baseline.
    """

    many: Worker
    few: Worker
    server: EmbeddedRedis
    control: redis.Redis
    memory: dict[str, Memory] = field(default_factory=dict)
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


def measure(sites: list[Site], plan: Plan, progress: RunProgress) -> None:
    """Fill all sites at the same time, since nothing is timed there; then take turns."""
    progress.stage("memory", len(sites) * (plan.keys + 2 * plan.in_flight))
    with ThreadPoolExecutor(len(sites)) as pool:
        list(pool.map(lambda site: _measure_memory(site, plan, progress), sites))
    if "ack" in plan.measures:
        _acknowledge([site for site in sites if "claimed" in site.memory], plan, progress)


def _measure_memory(site: Site, plan: Plan, progress: RunProgress) -> None:
    """Bytes per message: pending, claimed, and what a deduplication key adds."""
    request = site.many.request
    with progress.attempt(f"{site.name}, memory"):
        empty = _warm_up(site)
        for count in _batches(plan.keys, progress):
            request("slice", shell="sync", workload="dedup", count=count)
        once = _each(empty, _memory_of(site.control), plan.keys)
        site.control.flushall()
        for count in _batches(plan.in_flight, progress):
            request("hold", name=MANY, publish=count)
        pending = _each(empty, _memory_of(site.control), plan.in_flight)
        for count in _batches(plan.in_flight, progress):
            request("hold", name=MANY, claim=count)
        claimed = _each(empty, _memory_of(site.control), plan.in_flight)
        key = {how: once[how] - pending[how] for how in once}
        site.memory.update({"pending": pending, "claimed": claimed, "dedup key": key})


def _warm_up(site: Site) -> Memory:
    """Open the connections and load the scripts. Returns the memory of the otherwise empty server."""
    site.many.request("slice", shell="sync", workload="dedup", count=1)
    site.many.request("hold", name="warm", publish=1, claim=1)
    site.many.request("ack_oldest", name="warm", count=1)
    site.control.flushall()
    return _memory_of(site.control)


def _acknowledge(sites: list[Site], plan: Plan, progress: RunProgress) -> None:
    """In each round, ten acks per contender with many messages in flight, and ten with few."""
    progress.stage("acks", len(sites) * plan.ack_rounds)
    for site in sites:
        site.few.request("hold", name=FEW, publish=_FEW_HELD, claim=_FEW_HELD)
        for worker in site.workers.values():
            place(plan.placements[0], client=worker.pid, server=site.server.pid)
    for _ in range(plan.ack_rounds):
        for site in sites:
            progress.step()
            for name, worker in site.workers.items():
                site.acks[name].append(_ten_acks(worker, name))


def _ten_acks(worker: Worker, name: str) -> Cost:
    cost = worker.request("ack_oldest", name=name, count=_ACKS)
    worker.request("hold", name=name, publish=_ACKS, claim=_ACKS)
    return {clock: seconds / _ACKS for clock, seconds in cost.items()}


def _batches(total: int, progress: RunProgress) -> Iterator[int]:
    for done in range(0, total, _BATCH):
        count = min(_BATCH, total - done)
        yield count
        progress.step(count)


def _memory_of(control: redis.Redis) -> Memory:
    """The server's used memory, and the sum of MEMORY USAGE over all keys."""
    return {"used": control.info("memory")["used_memory"], "keys": sum(_keys(control))}


def _keys(control: redis.Redis) -> Iterator[int]:
    pipeline = control.pipeline(transaction=False)
    for key in control.scan_iter(count=_BATCH):
        pipeline.memory_usage(key, samples=0)
        if len(pipeline) == _BATCH:
            yield from pipeline.execute()
    yield from pipeline.execute()


def _each(before: Memory, after: Memory, count: int) -> Memory:
    return {how: (after[how] - before[how]) / count for how in before}
