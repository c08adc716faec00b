"""The filters of a query by which less of a table can be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource as spark


@dataclass(frozen=True)
class PushedFilters:
    """The filters of a query by which less of a table can be read. Times are microseconds."""

    tenants: frozenset[str] | None = None  # '' for messages without a tenant; None for all
    since: int | None = None
    until: int | None = None

    def add(self, one: spark.Filter, time: str | None) -> PushedFilters:
        """Return these filters and one more. `time` is the column by which the table is ordered."""
        attribute = getattr(one, "attribute", None)
        if attribute == ("tenant",):
            names = _tenants_in(one)
            if names is not None:
                return replace(self, tenants=names if self.tenants is None else self.tenants & names)
        if time is not None and attribute == (time,):
            at = _microseconds(getattr(one, "value", None))
            if at is not None and isinstance(one, spark.GreaterThan | spark.GreaterThanOrEqual | spark.EqualTo):
                self = replace(self, since=at if self.since is None else max(self.since, at))
            if at is not None and isinstance(one, spark.LessThan | spark.LessThanOrEqual | spark.EqualTo):
                self = replace(self, until=at if self.until is None else min(self.until, at))
        return self


def _tenants_in(one: spark.Filter) -> frozenset[str] | None:
    """Return the tenants that a filter accepts, '' for no tenant, or None if it is another kind of filter."""
    if isinstance(one, spark.IsNull):
        return frozenset({""})
    if isinstance(one, spark.EqualTo | spark.EqualNullSafe):
        return frozenset({one.value or ""})
    return frozenset(value or "" for value in one.value) if isinstance(one, spark.In) else None


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime):
        return None
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)
