"""Measures one member of the league after the other, and keeps the result of each."""

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.contender import ContenderFailed
from bench.environment import NoEnvironment
from bench.league.environment import HOME, bin_of
from bench.league.loss import lose
from bench.league.measure import BATCH, Plan, Stand, costs, delays, memory, waiting_handlers
from bench.league.members import MEMBERS, RAW, Member
from bench.league.processes import Site
from bench.machine import load, processor
from redis_message_queue.embedded import EmbeddedRedis

Result = dict[str, Any]
RESULTS = HOME / "results"


def measure(member: Member, plan: Plan, binary: str, bin_of: Callable[[Member], Path] = bin_of) -> Result:
    """All figures of a member, or why there are none."""
    began = load()
    result: Result = {
        "name": member.name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpus": os.cpu_count(),
        "processor": processor(),
        "plan": asdict(plan),
    }
    try:
        with tempfile.TemporaryDirectory() as directory:
            result |= _Measurement(plan, binary, bin_of, Path(directory)).of(member)
    except (ContenderFailed, NoEnvironment) as reason:
        result["left_out"] = str(reason)
    return result | {"load": [began, load()]}


@dataclass(frozen=True)
class _Measurement:
    """How a member is measured, where its environment is, and a directory for the files of its handlers."""

    plan: Plan
    binary: str
    bin_of: Callable[[Member], Path]
    directory: Path

    def of(self, member: Member) -> Result:
        result: Result = {"parts_left_out": {}} | self._costs(member)
        parts: dict[str, Callable[[Site, EmbeddedRedis, Plan], Any]] = {
            "delays": delays,
            "waiting_handlers": waiting_handlers,
            "memory": memory,
            "loss": lose,
        }
        for part, how in parts.items():
            with self._server() as server:
                try:
                    result[part] = how(self._site(member, server, part), server, self.plan)
                except ContenderFailed as reason:
                    result["parts_left_out"][part] = str(reason)
        return result

    def _costs(self, member: Member) -> Result:
        """Client and server share a CPU, so that the figures contain the work alone."""
        cpu = frozenset([max(os.sched_getaffinity(0))])
        raw = next(one for one in MEMBERS if one.name == RAW)
        with ExitStack() as stack:

            def stand(one: Member, side: str, batch: int) -> Stand:
                server = stack.enter_context(self._server())
                site = self._site(one, server, f"{side}-{batch}")
                return Stand(replace(site, batch=batch, cpus=cpu), server, stack)

            sizes = (1, BATCH) if member.batches else (1,)
            pairs = [(stand(member, "own", size), stand(raw, "raw", size)) for size in sizes]
            with self._server() as server:
                name = f"{server.flavour} {'.'.join(map(str, server.version))}"
            return {"server": name, "versions": pairs[0][0].versions, "costs": costs(pairs, self.plan)}

    def _server(self) -> EmbeddedRedis:
        return EmbeddedRedis(binary=self.binary, password=False)

    def _site(self, member: Member, server: EmbeddedRedis, log: str) -> Site:
        return Site(member, self.bin_of(member), server.url, self.directory / log)


def kept(member: Member, plan: Plan) -> Result | None:
    """The result of an earlier run of the same plan. Who could not be measured gets another chance."""
    path = _path(member)
    found: Result = json.loads(path.read_text()) if path.exists() else {}
    return found if found.get("plan") == asdict(plan) and "left_out" not in found else None


def keep(member: Member, result: Result) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    _path(member).write_text(json.dumps(result, indent=1))


def _path(member: Member) -> Path:
    return RESULTS / f"{member.adapter}.json"
