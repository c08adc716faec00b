"""The loss test: the same kills and cuts for each member, and what became of each message."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from bench.league.handler import ENDED
from bench.league.measure import Plan, ready
from bench.league.processes import Producer, Site, Worker
from redis_message_queue.embedded import EmbeddedRedis
from tests.faults.proxy import CUT_AFTER, PASS, Fault, FaultyProxy

HANDLER_SECONDS = 0.02
PER_SECOND = 40.0
# What happens, as parts of the time in which the producer publishes.
KILL, CUT_WORKER, LOSE_REPLY, CUT_PRODUCER = "kill", "cut worker", "lose reply", "cut producer"
SCHEDULE = (
    (0.10, LOSE_REPLY),
    (0.15, KILL),
    (0.30, CUT_WORKER),
    (0.40, LOSE_REPLY),
    (0.45, KILL),
    (0.55, CUT_PRODUCER),
    (0.60, CUT_WORKER),
    (0.70, LOSE_REPLY),
    (0.75, KILL),
    (0.85, CUT_WORKER),
    (0.90, CUT_PRODUCER),
)


class _Line(FaultyProxy):
    """A connection whose next request, whatever it is, can lose its reply."""

    losses = 0

    def fault_for(self, words: list[bytes]) -> Fault:
        if self.losses and words[0].upper() not in (b"HELLO", b"CLIENT", b"PING", b"SELECT"):
            self.losses -= 1
            return CUT_AFTER
        return PASS


def lose(site: Site, server: EmbeddedRedis, plan: Plan) -> dict[str, Any]:
    """How many confirmed messages were lost, are stuck, or were handled more than once."""
    with _Line(server.port) as for_producer, _Line(server.port) as for_worker, server.client() as control:
        # Otherwise DUMP compresses what is searched for below.
        control.config_set("rdbcompression", "no")
        here = replace(site, lease_seconds=plan.lease_seconds, pause_seconds=HANDLER_SECONDS)
        theirs = replace(here, url=_through(site.url, for_worker.port), log=Path(f"{site.log}.loss"))
        with (
            Producer(replace(here, url=_through(site.url, for_producer.port))) as producer,
            ready(theirs, producer) as worker,
        ):
            began, crashes = time.monotonic(), 0
            producer.send("insist", messages=plan.loss_messages, per_second=PER_SECOND)
            for part, what in SCHEDULE:
                until = began + part * plan.loss_messages / PER_SECOND
                while time.monotonic() < until:
                    crashes += worker.supervise()
                    time.sleep(0.02)
                _inflict(what, worker, for_producer, for_worker)
            published = producer.receive()
            ends, more = _wait_for_all(worker, set(published["confirmed"]), plan)
            missing = [number for number in published["confirmed"] if not ends[number]]
            stuck = _found(control, missing)
            return {
                "confirmed": len(published["confirmed"]),
                "errors": published["errors"],
                "lost": len(missing) - len(stuck),
                "stuck": len(stuck),
                "doubled": sum(times > 1 for times in ends.values()),
                "crashes": crashes + more,
            }


def _inflict(what: str, worker: Worker, for_producer: _Line, for_worker: _Line) -> None:
    if what == KILL:
        worker.restart()
    elif what == CUT_WORKER:
        for_worker.cut_all()
    elif what == LOSE_REPLY:
        for_producer.losses += 1
    else:
        for_producer.cut_all()


def _wait_for_all(worker: Worker, confirmed: set[int], plan: Plan) -> tuple[Counter[int], int]:
    """How often each message was handled, once all were, or once there is no time left."""
    ends: Counter[int] = Counter()
    crashes, until = 0, time.monotonic() + plan.loss_grace_seconds
    while confirmed - ends.keys() and time.monotonic() < until:
        ends += _ended(worker)
        crashes += worker.supervise()
        time.sleep(0.1)
    time.sleep(2 * plan.lease_seconds)  # for what is delivered once more
    return ends + _ended(worker), crashes


def _ended(worker: Worker) -> Counter[int]:
    # A clock in nanoseconds is not a number of this test: it is a message that made the worker ready.
    numbers = [int(number) for what, number, _ in worker.log.new() if what == ENDED]
    return Counter(number for number in numbers if number < 1_000_000)


def _found(control: redis.Redis, missing: list[int]) -> set[int]:
    """Those that are still somewhere in Redis."""
    keys: Any = control.scan_iter(count=1_000)
    everything: Any = [control.dump(key) or b"" for key in keys]
    return {number for number in missing if any(f"{number:018}".encode() in dump for dump in everything)}


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"127.0.0.1:{port}").geturl()
