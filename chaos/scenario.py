"""The queues and the processes of a campaign: who publishes and consumes what, and with which options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from redis_message_queue.stored.keys import QueueKeys, partition_keys

TENANTS = ("acme", "globex", "initech", "umbrella")
WINDOW_SECONDS = 20.0
GROUP = "chaos"


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A queue, and the servers where it lives: `durable`, `replicated` or `cluster`."""

    name: str
    place: str
    confirms: bool = False
    results: str | None = None  # the queue that gets the results of its messages
    partitions: int = 1
    most_in_flight: int | None = None  # messages of one tenant
    ordered: bool = False  # the messages of a tenant are handled one after the other
    tick_seconds: float | None = None  # how often its schedule publishes a message

    @property
    def key_prefixes(self) -> list[str]:
        """What the keys of each of its partitions begin with."""
        whole = QueueKeys.unchecked(self.name)
        return [partition_keys(whole, number, self.partitions).prefix for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One process: what it does, sync or async, and with which queue."""

    name: str
    role: str  # producer, single, batch or run: how it publishes or consumes
    shell: str
    queue: QueuePlace
    ways: tuple[str, ...] = ()  # how a producer publishes
    per_second: float = 10.0
    retry_budget_seconds: float = 60.0
    concurrency: int = 1
    prefetch: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> WorkerSpec:
        return cls(**given | {"queue": QueuePlace(**given["queue"]), "ways": tuple(given["ways"])})


ORDERS = QueuePlace("orders", "durable", results="results", tick_seconds=2.0)
RESULTS = QueuePlace("results", "durable")
EVENTS = QueuePlace("events", "durable")  # read by the Spark query
PAYMENTS = QueuePlace("payments", "replicated", confirms=True)
CLICKS = QueuePlace("clicks", "replicated")
TRANSFERS = QueuePlace("{transfers}", "cluster", results="{transfers}.results", ordered=True)
TRANSFER_RESULTS = QueuePlace("{transfers}.results", "cluster")
PARCELS = QueuePlace("{parcels}", "cluster", partitions=3, most_in_flight=2, tick_seconds=3.0)
QUEUES = (ORDERS, RESULTS, EVENTS, PAYMENTS, CLICKS, TRANSFERS, TRANSFER_RESULTS, PARCELS)

ALL_WAYS = ("single", "batch", "dedup", "tenant", "delayed")
SCHEDULE, TICK_KEY = "ticks", "tick"


def queue_options(place: QueuePlace, lease_seconds: float) -> dict[str, Any]:
    """What all objects of a queue have in common. Lists and journals keep everything, because it is evidence."""
    return {
        "partitions": place.partitions,
        "max_in_flight_per_tenant": place.most_in_flight,
        "ordered_tenants": place.ordered,
        "visibility_timeout_seconds": lease_seconds,
        "max_delivery_count": 20,
        "message_wait_interval_seconds": 1.0,
        "message_deduplication_log_ttl_seconds": WINDOW_SECONDS,
        "journal": "payload",
        "max_journal_length": 10_000_000,
        "enable_completed_queue": True,
        "max_completed_length": None,
        "retry_max_delay_seconds": 0.5,
    }


def workers(rate: float, *, spark: bool) -> list[WorkerSpec]:
    """The processes of a campaign. ``rate`` multiplies how often producers publish."""
    hasty = 1.5  # gives up within an outage, so that some calls have an unknown outcome
    found = [
        WorkerSpec("orders-producer", "producer", "sync", ORDERS, ALL_WAYS, 8 * rate),
        WorkerSpec("orders-hasty", "producer", "async", ORDERS, ALL_WAYS, 8 * rate, retry_budget_seconds=hasty),
        WorkerSpec("orders-single", "single", "sync", ORDERS),
        WorkerSpec("orders-batch", "batch", "async", ORDERS, prefetch=8),
        WorkerSpec("orders-run", "run", "sync", ORDERS, concurrency=3, prefetch=6),
        WorkerSpec("results-run", "run", "async", RESULTS, concurrency=4, prefetch=10),
        WorkerSpec("payments-producer", "producer", "async", PAYMENTS, ("single", "tenant", "dedup"), 6 * rate),
        WorkerSpec("payments-run", "run", "async", PAYMENTS, concurrency=2, prefetch=4),
        WorkerSpec("clicks-producer", "producer", "sync", CLICKS, ("single", "batch", "delayed"), 3 * rate),
        WorkerSpec("clicks-single", "single", "async", CLICKS),
        WorkerSpec("transfers-producer", "producer", "sync", TRANSFERS, ALL_WAYS, 6 * rate),
        WorkerSpec("transfers-batch", "batch", "sync", TRANSFERS, prefetch=6),
        WorkerSpec("transfers-run", "run", "async", TRANSFERS, concurrency=3, prefetch=4),
        WorkerSpec("transfers-results", "single", "async", TRANSFER_RESULTS),
        WorkerSpec("parcels-producer", "producer", "async", PARCELS, (*ALL_WAYS, "keyed"), 6 * rate),
        WorkerSpec("parcels-run", "run", "sync", PARCELS, concurrency=3, prefetch=4),
        WorkerSpec("parcels-single", "single", "async", PARCELS),
    ]
    if spark:
        found.append(WorkerSpec("events-producer", "producer", "async", EVENTS, ("batch", "tenant"), 4 * rate))
    return found
