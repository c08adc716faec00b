"""Plots are valid SVG, show their values and mark the faults."""

from xml.etree import ElementTree

import pytest

from chaos.series import quantile, series_of
from docs.plots import Band, Line, draw

SVG = "{http://www.w3.org/2000/svg}"


def parsed(plot: str) -> ElementTree.Element:
    return ElementTree.fromstring(plot)


def texts(plot: str) -> list[str]:
    return ["".join(one.itertext()) for one in parsed(plot).iter(f"{SVG}text")]


def test_a_plot_has_its_title_its_lines_and_its_legend() -> None:
    plot = draw("Messages & more", [0, 1, 2], [Line("published", [1, 2, 3]), Line("handled", [3, 2, 1])])
    assert texts(plot)[0] == "Messages & more"
    assert {"published", "handled"} <= set(texts(plot))
    assert len(list(parsed(plot).iter(f"{SVG}polyline"))) == 2


def test_a_missing_value_interrupts_a_line_and_a_lonely_one_is_a_dot() -> None:
    plot = draw("Gaps", [0, 1, 2, 3, 4], [Line("latency", [1, 2, None, 3, None])])
    assert len(list(parsed(plot).iter(f"{SVG}polyline"))) == 1
    assert len(list(parsed(plot).iter(f"{SVG}circle"))) == 1


def test_a_fault_is_a_band_with_its_name() -> None:
    plot = draw("Faults", [0, 10], [Line("rate", [1, 1])], bands=[Band("restart <durable>", 2, 4)])
    (band,) = parsed(plot).iter(f"{SVG}rect")
    assert band.find(f"{SVG}title") is not None
    assert "restart &lt;durable&gt;" in plot


@pytest.mark.parametrize("values", [[0.0, 0.0], [None, None], [0.0002, 40.0]])
def test_any_values_can_be_drawn_on_a_logarithmic_axis(values: list[float | None]) -> None:
    parsed(draw("Latency", [0, 1], [Line("p99", values)], logarithmic=True))


def test_powers_of_ten_label_a_logarithmic_axis() -> None:
    plot = draw("Latency", [0, 1], [Line("p99", [0.002, 4.0])], unit=" s", logarithmic=True)
    assert {"0.001 s", "0.01 s", "0.1 s", "1 s", "10 s"} <= set(texts(plot))


def test_a_series_has_rates_and_latencies_by_second() -> None:
    ledger = [
        {"who": "p", "do": "intent", "t": 10.1, "call": 1, "keys": ["a", "b"], "way": "batch"},
        {"who": "p", "do": "confirmed", "t": 10.3, "call": 1, "results": [True, True]},
        {"who": "c", "do": "handling", "t": 11.3, "key": "a", "attempt": 1},
        {"who": "c", "do": "handled", "t": 11.4},
    ]
    found = series_of(ledger, 10.0, 12.0)
    assert found["step_seconds"] == 1
    assert found["published_per_second"] == [2, 0]
    assert found["handled_per_second"] == [0, 1]
    assert found["publish_median_seconds"] == [0.2, None]
    assert found["delivery_p99_seconds"] == [None, 1.0]


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([], 0.5) is None
