"""Operations one after the other: small slices of every contender in turn, for several rounds."""

from collections import defaultdict
from itertools import product

from bench.contender import Worker
from bench.course import Course
from bench.meter import Cost
from bench.placement import place
from bench.plan import Case, Plan
from redis_message_queue.embedded import EmbeddedRedis

# A batch costs so little a message that a slice of the usual size would drown in the noise.
_MORE = {"publish_batch": 10, "consume_batch": 10, "run_1": 2, "run_100": 10}

Costs = dict[Case, dict[str, list[Cost]]]


def measure(workers: list[Worker], plan: Plan, server: EmbeddedRedis, course: Course) -> Costs:
    """What one operation cost, for each case, contender and round."""
    costs: Costs = defaultdict(lambda: defaultdict(list))
    course.stage("operations", (plan.rounds + 1) * len(plan.cases) * len(workers))
    with server.client() as control:
        # Round 0 opens connections and loads scripts; it is not kept.
        for turn, case in product(range(plan.rounds + 1), plan.cases):
            # There and back again: who was first is last in the next round.
            for worker in workers[:: 1 if turn % 2 else -1]:
                control.flushall()
                place(case[-1], client=worker.pid, server=server.pid)
                cost = _slice(worker, case, plan.operations, course)
                if turn and cost:
                    costs[case][worker.name].append(cost)
    return costs


def _slice(worker: Worker, case: Case, operations: int, course: Course) -> Cost | None:
    colour, workload, _ = case
    course.step()
    what = f"{worker.name}, {colour} {workload}"
    if what in course.left_out:
        return None
    with course.attempt(what):
        operations *= _MORE.get(workload, 1)
        cost = worker.ask("slice", colour=colour, workload=workload, count=operations)
        return {clock: seconds / operations for clock, seconds in cost.items()}
    return None
