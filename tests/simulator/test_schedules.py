"""A sample of the simulator's schedules: no invariant breaks, and a seed decides everything that happens."""

import os
import re
import subprocess
import sys
import time

import pytest

from simulator import campaign
from simulator.__main__ import main
from simulator.plan import Plan, plan_of
from simulator.trace import report
from simulator.world import Outcome, run
from tests.depth import often

# Each was the first that found a planted bug, and together they find all that were planted.
FINDERS = (
    *(
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        8,
        10,
        11,
        13,
        16,
        17,
        18,
        19,
        24,
        28,
        37,
        42,
        46,
        56,
        58,
        60,
        68,
        70,
        74,
        89,
        140,
        142,
        167,
    ),
    *(275, 562),
)


@pytest.mark.parametrize("seed", range(4000) if often(0, 1) else FINDERS)
def test_no_schedule_breaks_an_invariant(seed: int):
    """Producers, consumers, operators and queries survive lost replies, crashes, freezes and a failing server."""
    outcome = run(plan_of(seed))
    assert outcome.violation is None, report(outcome)
    assert outcome.messages > 0


@pytest.mark.parametrize(
    ("seed", "actors", "faults", "messages"),
    [
        pytest.param(
            335, "producer-1", "3,4", 5, id="the server lost a message after it had called another its duplicate"
        ),
        pytest.param(268, "producer-2,canceller-1", "2", None, id="an operator cancelled what the server had lost"),
        pytest.param(218773, None, None, None, id="a full partition refused to mark what another one had delayed"),
        pytest.param(244838, "query-2", "1", None, id="the connection of a query was lost while it read"),
        pytest.param(423, None, None, None, id="a tenant was paused and resumed between two claims"),
        pytest.param(485, None, "1,2,3,4", None, id="the server lost an acknowledgement of a queue without leases"),
        pytest.param(511, "producer-15,consumer-1,operator-2", "2", 1, id="an operator redrove at the end"),
        pytest.param(713, None, None, None, id="a query took a message that had kept its place"),
        pytest.param(717, None, None, None, id="a query took the wake-up for a delayed message"),
        pytest.param(1089, None, None, None, id="more messages expired at once than the dead letters may have"),
        pytest.param(1847, None, "3,4,5", None, id="a requeue named two claims of the same message"),
        pytest.param(3476, None, "2,3,4", None, id="a query died when the schedule was about to end"),
        pytest.param(4675, None, None, None, id="the server lost the ack of a query's last batch"),
        pytest.param(
            5240, "producer-2,consumer-1", "1", 1, id="a cancelled consumer of a queue without leases claimed again"
        ),
        pytest.param(7520, None, None, 3, id="a tick found a queue that drops messages full of delayed ones"),
        pytest.param(60751, None, None, None, id="a process started again because the queue had grown"),
        pytest.param(102978, None, None, None, id="a query gave back messages of a tenant with an order"),
        pytest.param(104989, None, None, None, id="a program ended although its drain could not recover a claim"),
        pytest.param(108063, None, None, None, id="a consumer ended when nobody was left to handle what it gave back"),
        pytest.param(108485, None, None, None, id="the server lost the end of a lease that a drained consumer knew of"),
        pytest.param(14341, None, None, None, id="a query that lost its group looked at the checkpoint of another"),
        pytest.param(302565, "producer-2,loop-1", "1,3", 5, id="a loop gave up long before its last handler ended"),
    ],
)
def test_a_schedule_that_the_oracle_misjudged(seed: int, actors: str | None, faults: str | None, messages: int | None):
    """What it reported was allowed; the oracle knows that now."""
    plan = plan_of(seed).only(
        actors=set(actors.split(",")) if actors else None,
        faults={int(one) for one in faults.split(",")} if faults else None,
        messages=messages,
    )
    outcome = run(plan)
    assert outcome.violation is None, report(outcome)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1287, id="a tenant was served twice while messages without one waited"),
        pytest.param(1492, id="a tenant was served twice while messages without one waited, with other actors"),
        pytest.param(4848, id="a woken consumer did not pass on the duty of the timer owner"),
        pytest.param(6522, id="a late repetition sealed the open batch of a query"),
        pytest.param(60247, id="a tenant got a message at its limit, and then nobody was woken for it"),
        pytest.param(60332, id="a definition that arrived late published a tick of the schedule before it again"),
        pytest.param(87460, id="a consumer that stopped kept the wake-up for a delayed message"),
        pytest.param(110141, id="a claim rested for longer than it had time, because no partition answered"),
        pytest.param(127288, id="a server lost the state of a hand-off's target twice"),
        pytest.param(7038, id="a batch started with a message whose lease had ended"),
        pytest.param(50138, id="an idle worker ended one whose message was handled meanwhile"),
        pytest.param(
            304703, id="a group that a full server had refused arrived late, after its messages were sent alone"
        ),
    ],
)
def test_a_schedule_that_found_a_bug(seed: int):
    """It passes now; other tests show the bug without the simulator."""
    outcome = run(plan_of(seed))
    assert outcome.violation is None, report(outcome)


def test_a_seed_decides_every_step():
    """The same seed gives the same trace, also in another process with another order of sets."""
    seeds = (2, 5, 8)
    here = [run(plan_of(seed)).digest for seed in seeds]
    assert [run(plan_of(seed)).digest for seed in seeds] == here
    program = "import sys; from simulator.plan import plan_of; from simulator.world import run\n"
    program += "for seed in map(int, sys.argv[1:]): print(run(plan_of(seed)).digest)"
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, seeds)],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == here


def test_other_seeds_give_other_schedules():
    """Seeds differ in who takes part and what goes wrong."""
    plans = [plan_of(seed) for seed in range(200)]
    assert {fault.kind for plan in plans for fault in plan.faults} >= {
        *(
            "weather",
            "kill",
            "freeze",
            "cancel",
            "cut",
            "drain",
            "restart",
            "failover",
            "full",
            "busy",
            "forget",
            "stop",
        )
    }
    assert {actor.kind for plan in plans for actor in plan.actors} == {
        *("producer", "single", "batch", "run", "until_empty", "query"),
        *("operator", "canceller", "pauser", "scheduler", "deployer", "importer", "grower"),
    }
    assert {plan.settings.partitions for plan in plans} >= {1, 2, 3}
    assert {plan.settings.nodes for plan in plans} == {1, 2, 3}
    assert any(plan.is_calm for plan in plans)
    assert any("ordered_tenants" in plan.settings.gateway for plan in plans)


def test_the_command_line_replays_a_schedule(capsys: pytest.CaptureFixture[str]):
    """It prints every step and the command that repeats it, with the actors and faults that were asked for."""
    plan = plan_of(5)
    names = ",".join(actor.name for actor in plan.actors)
    assert main(["--seed", "5", "--actors", names, "--faults", "none", "--messages", "1"]) == 0
    shown = capsys.readouterr().out
    assert "schedule 5" in shown
    assert "replay:   python -m simulator --seed 5" in shown
    assert "--messages 1" in shown


def test_a_campaign_can_be_resumed(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A second call with --resume continues behind the last schedule of the first."""
    monkeypatch.chdir(tmp_path)
    assert main(["--schedules", "2", "--workers", "1"]) == 0
    assert main(["--schedules", "1", "--workers", "1", "--resume"]) == 0
    assert "done up to 2: 3 schedules" in capsys.readouterr().out


def test_a_campaign_ends_with_its_time(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Though the pool has taken a thousand more, and each sleeps a twentieth of the time. None is left out."""

    def slow(plan: Plan) -> Outcome:
        time.sleep(0.01)
        return run(plan)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(campaign, "run", slow)
    assert main(["--minutes", str(0.2 / 60), "--workers", "2"]) == 0
    done = re.search(r"done up to (-?\d+): (\d+) schedules", capsys.readouterr().out)
    assert done is not None
    assert int(done[2]) == int(done[1]) + 1 <= 42
