"""One run: the servers, the contenders, and one measure after the other."""

import os
from contextlib import ExitStack

from rich.progress import Progress

from bench import figures, latency, pile, rates, report
from bench.contender import Contender, Worker, contenders
from bench.course import Course
from bench.figures import Figures
from bench.payload import SIZE
from bench.peer import NoPeer, peer_python
from bench.placement import FREE, place
from bench.plan import Plan
from redis_message_queue.embedded import EmbeddedRedis


def run(plan: Plan, binary: str, with_peer: bool, progress: Progress) -> Figures:
    """All figures of a plan, and who was left out of what."""
    course = Course(progress)
    candidates = contenders(_peer(course) if with_peer else None)
    with EmbeddedRedis(binary=binary, password=False) as server, ExitStack() as stack:
        workers, environment = _start(candidates, server, stack, course)
        progress.console.print(report.header(environment))
        present = [worker.contender for worker in workers]
        results = {"environment": environment, "rates": _rates(workers, plan, server, course)}
        if "latency" in plan.measures:
            results["latency"] = _latency(workers, plan, server, course)
    if {"ack", "memory"} & set(plan.measures):
        results |= _pile([one for one in present if one.kind == "library"], plan, binary, course)
    course.finish()
    return results | {"left_out": course.left_out}


def _peer(course: Course) -> str | None:
    course.stage("the peer's environment", 1)
    try:
        return peer_python()
    except NoPeer as reason:
        course.left_out["peer"] = str(reason)
        return None
    finally:
        course.step()


def _start(
    candidates: list[Contender], server: EmbeddedRedis, stack: ExitStack, course: Course
) -> tuple[list[Worker], Figures]:
    """A worker for each contender that can be started, and what they all run on."""
    workers: list[Worker] = []
    described: dict[str, dict[str, str | None]] = {}
    for contender in candidates:
        with course.attempt(contender.name):
            worker = stack.enter_context(Worker(contender, server.url))
            described[contender.name] = worker.ask("describe")
            workers.append(worker)
    version = ".".join(map(str, server.version))
    machine = {"server": f"{server.flavour} {version}", "cpus": os.cpu_count(), "payload_bytes": SIZE}
    return workers, machine | {"contenders": described}


def _rates(workers: list[Worker], plan: Plan, server: EmbeddedRedis, course: Course) -> list[Figures]:
    costs = rates.measure(workers, plan, server, course)
    return figures.rates(costs, [worker.contender for worker in workers])


def _latency(workers: list[Worker], plan: Plan, server: EmbeddedRedis, course: Course) -> list[Figures]:
    with server.client() as control, ExitStack() as stack:
        control.flushall()
        pairs = [(worker, stack.enter_context(Worker(worker.contender, server.url))) for worker in workers]
        for worker in workers:
            place(FREE, client=worker.pid, server=server.pid)
        delays = {colour: latency.measure(pairs, colour, plan.latency_seconds, course) for colour in plan.colours}
    return figures.latencies(delays, [worker.contender for worker in workers])


def _pile(libraries: list[Contender], plan: Plan, binary: str, course: Course) -> Figures:
    with ExitStack() as stack:
        sites = []
        for contender in libraries:
            server = stack.enter_context(EmbeddedRedis(binary=binary, password=False))
            sites.append(stack.enter_context(pile.site(contender, server)))
        pile.measure(sites, plan, course)
    found = {"ack": figures.acks(sites, plan), "memory": figures.memory(sites)}
    return {part: found[part] for part in found if part in plan.measures}
