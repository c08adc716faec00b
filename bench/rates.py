"""The cost of single operations: small slices of every contender in turn, for several rounds."""

from collections import defaultdict
from itertools import product

import redis

from bench.contender import Worker
from bench.meter import Cost
from bench.placement import place
from bench.plan import Case, Plan
from bench.progress import RunProgress
from redis_message_queue.embedded import EmbeddedRedis

# A batch costs so little per message that a slice of the usual size would be too short to measure.
_MORE = {"crowd": 20, "publish_batch": 10, "consume_batch": 10, "run_1": 2, "run_100": 10}

Costs = dict[Case, dict[str, list[Cost]]]


def measure(workers: list[Worker], plan: Plan, server: EmbeddedRedis, progress: RunProgress) -> Costs:
    """The cost of one operation, for each case, contender and round."""
    costs: Costs = defaultdict(lambda: defaultdict(list))
    progress.stage("operations", (plan.rounds + 1) * len(plan.cases) * len(workers))
    with server.client() as control:
        # Round 0 opens connections and loads scripts; its costs are dropped.
        for turn, case in product(range(plan.rounds + 1), plan.cases):
            # Reverse the order in every other round, so that no contender always goes first.
            for worker in workers[:: 1 if turn % 2 else -1]:
                _empty(control)
                place(case[-1], client=worker.pid, server=server.pid)
                cost = _slice(worker, case, plan.operations, progress)
                if turn and cost:
                    costs[case][worker.name].append(cost)
    return costs


def _empty(control: redis.Redis) -> None:
    """Delete everything but what a queue writes at its first use: that is not measured."""
    keys: list[bytes] = control.keys("*")  # type: ignore[assignment]  # a blocking client
    if found := [key for key in keys if not key.endswith(b"::meta")]:
        control.unlink(*found)


def _slice(worker: Worker, case: Case, operations: int, progress: RunProgress) -> Cost | None:
    shell, workload, _ = case
    progress.step()
    if not worker.contender.does(shell, workload):
        return None
    what = f"{worker.name}, {shell} {workload}"
    if what in progress.left_out:
        return None
    with progress.attempt(what):
        operations *= _MORE.get(workload, 1)
        cost = worker.request("slice", shell=shell, workload=workload, count=operations)
        return {clock: seconds / operations for clock, seconds in cost.items()}
    return None
