"""Throughput and latency over the time of a campaign, from the ledgers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from chaos.ledger import Entry

_MOST_BUCKETS = 240


def series_of(ledger: Iterable[Entry], start: float, end: float) -> dict[str, Any]:
    """For each bucket of time: publishes and deliveries a second, and how long they took, in seconds."""
    step = max(1, math.ceil((end - start) / _MOST_BUCKETS))
    buckets = max(1, math.ceil((end - start) / step))
    took: dict[str, defaultdict[int, list[float]]] = {name: defaultdict(list) for name in ("publish", "delivery")}
    published, handled = [0] * buckets, [0] * buckets
    intents: dict[tuple[str, int], Entry] = {}
    confirmed: dict[str, float] = {}

    def bucket(entry: Entry) -> int | None:
        place = int((entry["t"] - start) // step)
        return place if 0 <= place < buckets else None

    for entry in ledger:
        place = bucket(entry)
        if entry["do"] == "intent":
            intents[entry["who"], entry["call"]] = entry
        elif entry["do"] == "confirmed":
            intent = intents[entry["who"], entry["call"]]
            if intent["way"] != "delayed":
                confirmed.update(dict.fromkeys(intent["keys"], entry["t"]))
            if place is not None:
                published[place] += sum(entry["results"])
                took["publish"][place].append(entry["t"] - intent["t"])
        elif entry["do"] == "handled" and place is not None:
            handled[place] += 1
        elif entry["do"] == "handling" and place is not None and entry["attempt"] == 1:
            since = confirmed.get(entry["key"])
            if since is not None:
                took["delivery"][place].append(max(0.0, entry["t"] - since))
    return {
        "step_seconds": step,
        "published_per_second": [count / step for count in published],
        "handled_per_second": [count / step for count in handled],
        **{
            f"{name}_{label}_seconds": [quantile(values[place], share) for place in range(buckets)]
            for name, values in took.items()
            for label, share in (("median", 0.5), ("p99", 0.99))
        },
    }


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of the values does not exceed; None without any."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 5)
