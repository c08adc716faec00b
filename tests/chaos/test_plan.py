"""A plan depends on its seed alone, and uses every nemesis."""

from collections import Counter

import pytest

from chaos.plan import NEMESES, as_json, choose, make_plan
from tests.tables import row

ALL = list(NEMESES)


def test_a_seed_always_gives_the_same_plan() -> None:
    assert make_plan(7, 600, ALL, 3.0) == make_plan(7, 600, ALL, 3.0)
    assert make_plan(7, 600, ALL, 3.0) != make_plan(8, 600, ALL, 3.0)


def test_every_nemesis_has_its_turn_before_any_has_two_more(subtests: pytest.Subtests) -> None:
    for seed in range(20):
        with row(subtests, seed=seed):
            plan = make_plan(seed, 1800, ALL, 3.0)
            times = Counter(action.nemesis for action in plan)
            assert set(times) == set(ALL)
            assert max(times.values()) - min(times.values()) <= 1


def test_a_plan_of_a_minute_has_nearly_every_nemesis(subtests: pytest.Subtests) -> None:
    for seed in range(20):
        with row(subtests, seed=seed):
            plan = make_plan(seed, 45, choose([], [], spark=False), 3.0)
            assert len({action.nemesis for action in plan}) >= 10


def test_actions_follow_one_another_and_end_in_time(subtests: pytest.Subtests) -> None:
    for seed in range(20):
        with row(subtests, seed=seed):
            plan = make_plan(seed, 300, ALL, 3.0)
            ends = [action.at + action.seconds for action in plan]
            assert all(end < later.at for end, later in zip(ends, plan[1:], strict=False))
            assert ends[-1] < 300


def test_a_stopped_process_outlives_its_lease() -> None:
    assert all(action.seconds > 3.0 for action in make_plan(1, 1800, ["stop"], 3.0))


def test_a_clock_never_goes_far_from_the_right_time(subtests: pytest.Subtests) -> None:
    for seed in range(20):
        with row(subtests, seed=seed):
            steps = [action.number for action in make_plan(seed, 1800, ["clock"], 3.0)]
            assert all(abs(sum(steps[:place])) <= 20 for place in range(len(steps) + 1))


def test_no_nemesis_is_an_empty_plan() -> None:
    assert make_plan(1, 60, [], 3.0) == []


def test_a_plan_can_be_written_as_json() -> None:
    action, *_ = make_plan(1, 60, ["clock"], 3.0)
    assert as_json([action]) == [{"at": action.at, "nemesis": "clock", "seconds": 0.0, "number": action.number}]
    assert str(action).split()[2:4] == ["clock", f"{action.number:+d}"]


def test_nemeses_are_chosen_by_name() -> None:
    assert choose(["kill", "stop"], [], spark=False) == ["kill", "stop"]
    assert choose([], ["kill"], spark=True) == [name for name in ALL if name != "kill"]
    assert "kill-spark" not in choose([], [], spark=False)


def test_an_unknown_nemesis_is_refused() -> None:
    with pytest.raises(ValueError, match="plague: choose from kill, stop"):
        choose(["plague"], [], spark=False)
