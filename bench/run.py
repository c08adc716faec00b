"""One benchmark run: starts the servers and the contenders and takes one measurement after the other."""

import os
from contextlib import ExitStack

from rich.progress import Progress

from bench import figures, in_flight, latency, rates, report
from bench.contender import Contender, Worker, contenders
from bench.environment import NoEnvironment, python_of
from bench.figures import Figures
from bench.payload import SIZE
from bench.peer import peer_python
from bench.placement import FREE, place
from bench.plan import Plan
from bench.progress import RunProgress
from redis_message_queue.embedded import EmbeddedRedis


def run(plan: Plan, binary: str, with_peer: bool, bar: Progress) -> Figures:
    """All figures of a plan, and what was left out, with the reasons."""
    progress = RunProgress(bar)
    progress.stage("environments", 2)
    hiredis, plain = python_of(hiredis=True), python_of(hiredis=False)
    candidates = contenders(hiredis, plain, _peer(progress) if with_peer else None)
    with EmbeddedRedis(binary=binary, password=False) as server, ExitStack() as stack:
        workers, environment = _start(candidates, server, stack, progress)
        environment["rounds"] = plan.rounds
        bar.console.print(report.header(environment))
        present = [worker.contender for worker in workers]
        results = {"environment": environment, "rates": _rates(workers, plan, server, progress)}
        if "latency" in plan.measures:
            main = [worker for worker in workers if worker.contender in _main(present)]
            results["latency"] = _latency(main, plan, server, progress)
        if "due" in plan.measures:
            results["due"] = _due(workers, plan, server, progress)
    if {"ack", "memory"} & set(plan.measures):
        results |= _in_flight([one for one in _main(present) if one.kind == "library"], plan, binary, progress)
    progress.finish()
    environment["load"] = round(os.getloadavg()[1], 1)
    return results | {"left_out": progress.left_out}


def _main(present: list[Contender]) -> list[Contender]:
    """Those that are measured in everything: no references, and this library with hiredis only."""
    return [one for one in present if one.workloads is None and not one.name.endswith("plain")]


def _peer(progress: RunProgress) -> str | None:
    progress.stage("the peer's environment", 1)
    try:
        return peer_python()
    except NoEnvironment as reason:
        progress.left_out["peer"] = str(reason)
        return None
    finally:
        progress.step()


def _start(
    candidates: list[Contender], server: EmbeddedRedis, stack: ExitStack, progress: RunProgress
) -> tuple[list[Worker], Figures]:
    """A worker for each contender that starts, and a description of the machine and the packages."""
    workers: list[Worker] = []
    described: dict[str, dict[str, str | None]] = {}
    for contender in candidates:
        with progress.attempt(contender.name):
            worker = stack.enter_context(Worker(contender, server.url))
            described[contender.name] = worker.request("describe")
            workers.append(worker)
    version = ".".join(map(str, server.version))
    machine = {"server": f"{server.flavour} {version}", "cpus": os.cpu_count(), "payload_bytes": SIZE}
    return workers, machine | {"contenders": described}


def _rates(workers: list[Worker], plan: Plan, server: EmbeddedRedis, progress: RunProgress) -> list[Figures]:
    costs = rates.measure(workers, plan, server, progress)
    return figures.rates(costs, [worker.contender for worker in workers])


def _latency(workers: list[Worker], plan: Plan, server: EmbeddedRedis, progress: RunProgress) -> list[Figures]:
    with server.client() as control, ExitStack() as stack:
        control.flushall()
        pairs = [(worker, stack.enter_context(Worker(worker.contender, server.url))) for worker in workers]
        for worker in workers:
            place(FREE, client=worker.pid, server=server.pid)
        delays = {shell: latency.measure(pairs, shell, plan.latency_seconds, progress) for shell in plan.shells}
    return figures.latencies(delays, [worker.contender for worker in workers])


def _due(workers: list[Worker], plan: Plan, server: EmbeddedRedis, progress: RunProgress) -> list[Figures]:
    (ours,) = [worker for worker in workers if worker.name == "library"]
    with server.client() as control, Worker(ours.contender, server.url) as sender:
        control.flushall()
        place(FREE, client=ours.pid, server=server.pid)
        seconds = plan.latency_seconds
        return figures.due(
            {shell: latency.measure_due((ours, sender), shell, seconds, progress) for shell in plan.shells}
        )


def _in_flight(libraries: list[Contender], plan: Plan, binary: str, progress: RunProgress) -> Figures:
    with ExitStack() as stack:
        sites = []
        for contender in libraries:
            server = stack.enter_context(EmbeddedRedis(binary=binary, password=False))
            sites.append(stack.enter_context(in_flight.site(contender, server)))
        in_flight.measure(sites, plan, progress)
    found = {"ack": figures.acks(sites, plan), "memory": figures.memory(sites)}
    return {part: found[part] for part in found if part in plan.measures}
