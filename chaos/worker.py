"""One process of a campaign: a producer or a consumer, sync or async, which writes a ledger of what it does."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import zlib
from pathlib import Path
from typing import Any

from chaos.ledger import Ledger, NoLedger
from chaos.scenario import SCHEDULE, TENANTS, TICK_KEY, WorkerSpec, queue_options
from chaos.shells import EXPECTED_ERRORS, SHELLS, Shell, lease_of
from redis_message_queue import (
    CleanupFailedError,
    ConfigurationError,
    GracefulInterruptHandler,
    LeaseLostError,
    LuaScriptError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueEvent,
    RetryPolicy,
)

POLICY = RetryPolicy(max_attempts=3, initial_delay_seconds=0.2, max_delay_seconds=1.0)
_DEDUPLICATION_KEYS = 40  # so few that most publishes with one of them are duplicates
_PARTITION_KEYS = 20
_LONGEST_BATCH = 12
# Some handlers take long, so that many a process that is stopped or killed has a message at hand.
_LONG_WORK_SHARE, _LONG_WORK_SECONDS = 0.03, 0.5
# How an event of the library ends a delivery. Others, such as a refused renewal, do not.
_SETTLING = {
    "ack": "acked",
    "nack": "failed",
    "retried": "retried",
    "requeued": "requeued",
    "handed_off": "handed_off",
    "stale_lease_ack": "stale",
    "stale_lease_nack": "stale",
}


class Rejected(Exception):
    """What a handler raises, as if its message could not be handled."""


def chance_of(key: str) -> float:
    """A number from 0 to 1 that belongs to a message, whoever handles it."""
    return zlib.crc32(key.encode()) / 2**32


class Worker:
    """Does its work until it gets SIGTERM."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.spec = WorkerSpec.from_dict(told["spec"])
        self.ledger = Ledger(Path(told["ledger"])) if told["writes_ledger"] else NoLedger()
        self.who = Path(told["ledger"]).stem
        self.random = random.Random(told["seed"])
        self.stop = GracefulInterruptHandler(signals=(signal.SIGTERM,))
        self.shell: Shell = SHELLS[self.spec.shell](told["url"], self.spec.queue.place)
        self._options = queue_options(self.spec.queue, told["lease_seconds"]) | self.spec.options
        self._lease = told["lease_seconds"]
        self._published = 0

    async def work(self) -> None:
        async with self.shell:
            await (self.produce() if self.spec.role == "producer" else self.consume())
        self.ledger.write("ended")
        self.ledger.close()

    def queue(self, name: str, **options: Any) -> Any:
        budget = {"retry_budget_seconds": self.spec.retry_budget_seconds}
        return self.shell.queue(name, **self._options | budget | {"interrupt": self.stop} | options)

    # Producers

    async def produce(self) -> None:
        place = self.spec.queue
        confirming = {"confirm_replicas": 1, "confirm_timeout_seconds": 1.0} if place.confirms else {}
        plain = self.queue(place.name, **confirming)
        deduplicating = self.queue(
            place.name, deduplication=True, get_deduplication_key=lambda message: message["d"], **confirming
        )
        await self.schedule(plain)
        while not self.stop.is_interrupted():
            way = self.random.choice(self.spec.ways)
            await self.publish(deduplicating if way == "dedup" else plain, way)
            await asyncio.sleep(self.random.uniform(0.5, 1.5) / self.spec.per_second)
        if place.tick_seconds is not None:
            await self.shell.call(plain.unschedule, SCHEDULE)
        for queue in (plain, deduplicating):
            await self.shell.call(queue.drain, 30)

    async def schedule(self, queue: Any) -> None:
        """Define the schedule of the queue, if it has one; every producer does, and the first one counts."""
        every = self.spec.queue.tick_seconds
        while every is not None and not self.stop.is_interrupted():
            try:
                message = {"key": TICK_KEY}
                await self.shell.call(queue.schedule, SCHEDULE, message=message, every_seconds=every, missed="all")
                return
            except EXPECTED_ERRORS as error:
                self.ledger.write("trouble", error=type(error).__name__, text=str(error)[:200])
                await asyncio.sleep(0.1)

    async def publish(self, queue: Any, way: str) -> None:
        """One publish, with its intent and its outcome in the ledger."""
        count = self.random.randint(2, _LONGEST_BATCH) if way == "batch" else 1
        key = f"d{self.random.randrange(_DEDUPLICATION_KEYS)}" if way == "dedup" else None
        tenants = way in ("tenant", "batch") or (way == "dedup" and self.random.random() < 0.5)
        tenant = self.random.choice(TENANTS) if tenants else None
        messages = [self.message(key) for _ in range(count)]
        details: dict[str, Any] = {"tenant": tenant}
        if way == "delayed":
            details["delay_seconds"] = self.random.uniform(0.1, 3.0)
        if way == "keyed":
            details["partition_key"] = f"k{self.random.randrange(_PARTITION_KEYS)}"
        # What decides on the partition: the first of these that a message has.
        partition_key = details.get("partition_key") or tenant or key
        keys = [message["key"] for message in messages]
        call = self.ledger.intend(
            self.spec.queue.name, keys, d=key, way=way, tenant=tenant, partition_key=partition_key
        )
        sent, given = (queue.publish_many, messages) if way == "batch" else (queue.publish, messages[0])
        unconfirmed: PublishNotConfirmedError | None = None
        while True:
            try:
                results = await self.shell.call(sent, given, repeat_of=unconfirmed, **details)
            except PublishNotConfirmedError as error:
                unconfirmed = error
                self.ledger.write("unconfirmed", call=call)
                if not self.stop.is_interrupted():
                    continue
                self.ledger.write("unknown", call=call, error=type(error).__name__)
            except (QueueBackpressureError, ConfigurationError, LuaScriptError) as error:
                self.ledger.write("refused", call=call, error=type(error).__name__)
            except EXPECTED_ERRORS as error:
                self.ledger.write("unknown", call=call, error=type(error).__name__)
            else:
                self.ledger.write("confirmed", call=call, results=results if way == "batch" else [results])
            return

    def message(self, deduplication_key: str | None) -> dict[str, Any]:
        self._published += 1
        key = f"{self.who}.{self._published}"
        return {"key": key} if deduplication_key is None else {"key": key, "d": deduplication_key}

    # Consumers

    async def consume(self) -> None:
        place = self.spec.queue
        heartbeat = {"heartbeat_interval_seconds": self._lease / 3} if self.spec.role == "run" else {}
        queue = self.queue(place.name, on_event=self.note, retry_policy=POLICY, **heartbeat)
        results = self.queue(place.results) if place.results else None
        while not self.stop.is_interrupted():
            try:
                await getattr(self, f"_consume_{self.spec.role}")(queue, results)
            except Rejected:
                continue
            except EXPECTED_ERRORS as error:
                self.ledger.write("trouble", error=type(error).__name__, text=str(error)[:200])
                await asyncio.sleep(0.1)
        await self.shell.call(queue.drain, 30)

    async def _consume_single(self, queue: Any, results: Any) -> None:
        async with self.shell.block(queue.process_message()) as payload:
            if payload is not None:
                await self.handle(queue.current_message(), results)

    async def _consume_batch(self, queue: Any, results: Any) -> None:
        async with self.shell.block(queue.process_messages(self.random.randint(1, self.spec.prefetch))) as batch:
            for message in batch:
                try:
                    await self.handle(message, results)
                except Rejected as error:
                    await self.shell.call(batch.fail, message, error)
                except (LeaseLostError, CleanupFailedError) as error:
                    self.ledger.write("trouble", error=type(error).__name__, text=str(error)[:200])

    async def _consume_run(self, queue: Any, results: Any) -> None:
        await self.shell.run(
            queue,
            lambda message: self.handle(message, results),
            concurrency=self.spec.concurrency,
            prefetch=self.spec.prefetch,
        )

    async def handle(self, message: Any, results: Any) -> None:
        """Do the work of one message. What it does depends on the message alone."""
        key = str(message.json()["key"])
        seen = {"queue": message.queue, "id": message.id, "lease": lease_of(message), "attempt": message.attempt}
        self.ledger.write("handling", key=key, **seen)
        chance = chance_of(key)
        await asyncio.sleep(_LONG_WORK_SECONDS if chance > 1 - _LONG_WORK_SHARE else chance * 0.01)
        if chance < 0.01 or (chance < 0.05 and message.attempt == 1):
            raise Rejected(f"{key} is rejected")
        self.ledger.write("handled", **seen)
        if results is not None and chance > 0.6:
            await self.shell.call(message.complete, [(results, {"key": f"of {key}"})])

    def note(self, event: QueueEvent) -> None:
        """What the library says about a delivery: that it was claimed, and how it ended."""
        how = _SETTLING.get(event.operation)
        if event.operation == "claim" and event.message_id is not None:
            self.ledger.write(
                "claimed", durable=False, queue=event.queue, id=event.message_id, lease=event.lease_token_hash
            )
        if how is not None:
            self.ledger.write(
                "settled", durable=False, queue=event.queue, id=event.message_id, lease=event.lease_token_hash, how=how
            )


def run_worker(told: dict[str, Any]) -> None:
    """The whole life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the campaign, which ends its workers
    os.dup2(os.open(told["stderr"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), 2)
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("redis_message_queue").setLevel(logging.CRITICAL)  # outages are expected; the ledger has the rest
    asyncio.run(Worker(told).work())
