"""A measurement is flat if its slope after the warm-up is small, whatever single samples do."""

import pytest

from chaos.flatness import flatness_of

TIMES = [float(second) for second in range(60)]


def test_a_constant_is_flat() -> None:
    found = flatness_of(TIMES, [100.0] * 60, floor=0)
    assert (found.median, found.growth, found.is_flat) == (100.0, 0.0, True)


def test_a_leak_is_found() -> None:
    assert not flatness_of(TIMES, [100 + second for second in TIMES], floor=2).is_flat


def test_a_warm_up_does_not_count() -> None:
    assert flatness_of(TIMES, [min(second, 20.0) for second in TIMES], floor=0).is_flat


def test_single_peaks_do_not_count() -> None:
    values = [100.0] * 60
    values[-1] = values[40] = 1000.0
    assert flatness_of(TIMES, values, floor=0).is_flat


def test_a_growth_below_its_floor_does_not_count() -> None:
    values = [10.0 + second / 60 for second in TIMES]
    assert flatness_of(TIMES, values, floor=2).is_flat
    assert not flatness_of(TIMES, values, floor=0.1).is_flat


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="let it run longer"):
        flatness_of([0.0], [1.0], floor=1)
