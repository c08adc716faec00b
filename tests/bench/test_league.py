"""The league measures its members, keeps their results, and names those that it cannot measure."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.league import page, run
from bench.league.measure import Plan
from bench.league.members import LIBRARY, MEMBERS, RAW, Member
from docs.plots import OURS

TINY = Plan(
    rounds=1,
    messages=0.02,
    idle_samples=2,
    load_samples=5,
    stored=50,
    loss_messages=40,
    loss_grace_seconds=3,
    lease_seconds=1,
    warm_up_seconds=0.5,
)


def member(name: str) -> Member:
    return next(one for one in MEMBERS if one.name == name)


def here(_: Member) -> Path:
    """The environment of the tests: it has this library and redis-py."""
    return Path(sys.executable).parent


@pytest.mark.in_full
def test_every_part_of_a_member_is_measured_beside_raw_redis_py(pytestconfig: pytest.Config) -> None:
    result = run.measure(member(LIBRARY), TINY, pytestconfig.getoption("--server"), here)
    assert "left_out" not in result and result["parts_left_out"] == {}
    for workload in ("publish", "publish_once", "publish_batch", "publish_crowd", "consume", "consume_batch"):
        for side in ("own", "raw"):
            (cost,) = result["costs"][workload][side]
            assert cost["client"] > 0 and cost["wall"] > 0, workload
    assert [len(result["delays"][kind]) for kind in ("idle", "load")] == [2, 5]
    assert {seconds: rate > 0 for seconds, rate in result["waiting_handlers"].items()} == {"0.01": True, "0.1": True}
    assert result["memory"]["waiting"] > 0
    loss = result["loss"]
    assert loss["confirmed"] == TINY.loss_messages
    assert (loss["lost"], loss["stuck"], loss["errors"]) == (0, 0, 0)
    text = page.tables([result, {"name": "huey", "left_out": "it could not be installed"}])
    assert text.count("\n| **this library** |") == 6
    assert "- huey: it could not be installed" in text


def test_a_member_whose_worker_does_not_start_is_left_out_with_its_reason(pytestconfig: pytest.Config) -> None:
    broken = replace(member(RAW), name="broken", worker=("{bin}/python", "-c", "raise SystemExit('no such worker')"))
    result = run.measure(broken, TINY, pytestconfig.getoption("--server"), here)
    assert "no such worker" in result["left_out"]


def test_a_result_is_kept_for_the_same_plan_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    one, plan = member(RAW), {"plan": TINY.__dict__}
    run.keep(one, plan)
    assert run.kept(one, TINY) == plan
    assert run.kept(one, replace(TINY, rounds=2)) is None


def test_bars_are_sorted_and_ours_stands_out() -> None:
    drawn = page.relative_bars("title", {"slow": 0.1, LIBRARY: 0.9})
    assert drawn.index(f">{LIBRARY}<") < drawn.index(">slow<")
    assert drawn.count(f'style="fill:{OURS}"') == 1
