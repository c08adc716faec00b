"""The simulated server does what a real one does: each step of random schedules has the same reply and effect."""

import pytest
import redis

from simulator.plan import Plan, plan_of
from simulator.server import Step
from simulator.world import World
from tests.depth import often
from tests.model.real_server import RealServer


def _without_lost_writes(plan: Plan) -> Plan:
    """A real server cannot be set back to an earlier state in the middle of a schedule."""
    return plan.only(faults={one.number for one in plan.faults if not one.lost_seconds})


# In schedule 13, messages that failed keep their places.
@pytest.mark.parametrize("seed", range(often(8, 200)))
def test_every_step_of_a_schedule_is_the_same_on_a_real_server(client: redis.Redis, seed: int):
    """Replies, errors and keys agree, with lost and repeated requests, on a full server, for all scripts."""
    real = RealServer(client)

    def observe(step: Step) -> None:
        real.repeat(step, world.keyspace)

    world = World(_without_lost_writes(plan_of(seed)), observe)
    try:
        outcome = world.run()
    finally:
        client.config_set("maxmemory", 0)
    for error in world.loop.world.errors:
        raise error
    assert outcome.violation is None
    assert real.steps >= outcome.steps > 0
