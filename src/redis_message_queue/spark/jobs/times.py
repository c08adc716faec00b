"""Durations as counts by value, so that those of several parts can be added and still give the same quantiles.

Up to 10,000 different values of a group are kept as they are. Beyond, values that differ by less than a thousandth
share a count and the greatest of them, which is a value that occurred. So the quantiles depend on nothing but the
values: neither on the order in which parts were added, nor on how many parts there were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]
Frame = Any  # a DataFrame; pandas has no types of its own

PERCENTS = (50, 95, 99)
_EXACT_VALUES = 10_000
_KEPT_BITS = 11  # the leading bits of a value: one part in 1,024 to 2,047


@dataclass(frozen=True)
class Times:
    """Durations in microseconds, in groups. A row for each group and value, in that order."""

    groups: Frame  # the keys of each group, and whether its values are `rough`
    group: Array
    value: Array
    count: Array

    @classmethod
    def of(cls, groups: Frame, group: Array, value: Array, count: Array, keys: Sequence[str]) -> "Times":
        """Return durations grouped by ``keys``, whatever they were grouped by before."""
        keys = list(keys)
        grouped = groups.groupby(keys, sort=True)
        number = grouped.ngroup().to_numpy()
        merged = grouped["rough"].any().reset_index()
        group = number[group]
        order = np.lexsort((value, group))
        group, value, count = _summed(group[order], value[order], count[order])
        rough = merged["rough"].to_numpy() | (np.bincount(group, minlength=len(merged)) > _EXACT_VALUES)
        if rough.any():
            shared = np.where(rough[group], _rounded(value), value)
            group, value, count = _summed(group, shared, count, value)
        return cls(merged.assign(rough=rough), group, value, count)

    @classmethod
    def merge(cls, parts: Sequence["Times"], keys: Sequence[str]) -> "Times":
        """Return the durations of all parts, grouped by ``keys``."""
        offsets = np.cumsum([0, *(len(one.groups) for one in parts)])
        return cls.of(
            pd.concat([one.groups for one in parts], ignore_index=True),
            np.concatenate([one.group + offset for one, offset in zip(parts, offsets, strict=False)]),
            np.concatenate([one.value for one in parts]),
            np.concatenate([one.count for one in parts]),
            keys,
        )

    def where(self, wanted: Array) -> "Times":
        """Return only some groups."""
        rows = wanted[self.group]
        number = np.cumsum(wanted) - 1
        groups = self.groups[wanted].reset_index(drop=True)
        return Times(groups, number[self.group[rows]], self.value[rows], self.count[rows])

    def quantiles(self) -> Frame:
        """Return the groups with their quantiles by nearest rank: `p50`, `p95` and `p99`, in seconds."""
        size = np.bincount(self.group, self.count, minlength=len(self.groups)).astype(np.int64)
        ends = np.cumsum(self.count)
        before = np.cumsum(size) - size
        ranks = {f"p{percent}": before - (-size * percent // 100) for percent in PERCENTS}
        return self.groups.assign(
            **{name: self.value[np.searchsorted(ends, rank)] / 1_000_000 for name, rank in ranks.items()}
        )

    # -- as tables

    def tables(self) -> dict[str, Frame]:
        return {"groups": self.groups, "values": pd.DataFrame({name: getattr(self, name) for name in _COLUMNS})}

    @classmethod
    def from_tables(cls, groups: Frame, values: Frame) -> "Times":
        return cls(groups, *(values[name].to_numpy() for name in _COLUMNS))


_COLUMNS = ("group", "value", "count")


def _summed(group: Array, value: Array, count: Array, shown: Array | None = None) -> tuple[Array, Array, Array]:
    """Add the counts of neighbours with the same group and value. ``shown`` are values to return instead."""
    if not len(group):
        return group, value, count
    is_last = np.append((group[1:] != group[:-1]) | (value[1:] != value[:-1]), True)
    starts = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
    return group[is_last], (value if shown is None else shown)[is_last], np.add.reduceat(count, starts)


def _rounded(value: Array) -> Array:
    """Return values with only their leading bits."""
    bits = np.frexp(value.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - _KEPT_BITS, 0)
    return value >> shift << shift
