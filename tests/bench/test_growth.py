"""The growth benchmark measures every axis, and its verdicts come from the figures."""

import pytest

from bench.growth import page
from bench.growth.axes import AXES, Sizes, measure
from bench.growth.verdict import judge

TINY = Sizes(
    pending=(50, 500),
    in_flight=(5, 50),
    tenants=(1, 20),
    waiting=(1, 2),
    payload=(100, 10_000),
    rounds=1,
    operations=5,
)
DECADES = (10.0, 100.0, 1_000.0, 10_000.0)


@pytest.mark.parametrize("axis", AXES)
def test_each_axis_has_a_point_for_each_size(axis: str, pytestconfig: pytest.Config) -> None:
    figures = measure(axis, TINY, pytestconfig.getoption("--server"))
    assert [point["size"] for point in figures["points"]] == list(getattr(TINY, axis))
    for point in figures["points"]:
        assert point["longest_ms"] > 0
        assert all(cost["client"] > 0 for cost in point["costs"].values())
    text = "\n".join(page.section(figures))
    assert text.count("\n| ") >= len(figures["points"])
    if axis != "journal":
        assert "**verdict**" in text and page.plot(figures).startswith("<svg")


@pytest.mark.parametrize(
    ("costs", "word"),
    [
        ([20, 21, 19, 22], "flat"),
        ([20, 26, 31, 38], "logarithmic"),
        ([20, 40, 80, 160], "a power"),
        ([20, 200, 2_000, 20_000], "linear"),
        ([20, 60, 62, 58], "flat from 100"),
        # A cost that stays and then explodes is not called logarithmic because of its good beginning.
        ([20, 20, 20, 60], "a power"),
    ],
)
def test_a_verdict_follows_from_the_costs(costs: list[float], word: str) -> None:
    assert judge(list(zip(DECADES, costs, strict=True))).word == word
