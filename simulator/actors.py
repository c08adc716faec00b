"""Who takes part in a schedule: producers, consumers, operators and streaming queries.

They use the library as its users do: the asyncio queue over a simulated port, and the consumer group of a streaming
query over a blocking one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from redis_message_queue.asyncio.message import ReceivedMessage
from redis_message_queue.asyncio.message_queue import RedisMessageQueue
from redis_message_queue.options.declared import GatewayOptions, QueueOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.operate.transfer import Importer, TransferredMessage
from redis_message_queue.protocol.parts import Parts
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.spark.connection import WHOLE, RedisReader
from redis_message_queue.spark.consumer_group import ConsumerGroup, GroupPart
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import (
    CleanupFailedError,
    ConfigurationError,
    ConsumerGroupBusyError,
    ConsumerGroupLostError,
    DataLossError,
    LeaseLostError,
    LuaScriptError,
    PartitionCountError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.values.events import EventOperation, EventOutcome, QueueEvent
from simulator.bridge import BlockingSimulatedPort, block_on, run_blocking
from simulator.loop import Process
from simulator.oracle.ticks import MARK, name_of, named
from simulator.plan import GROUP, QUEUE, RESULTS, Actor, gateway_options
from simulator.port import SimulatedPort

if TYPE_CHECKING:
    from simulator.world import World

_SLACK = 0.3  # seconds: a few round trips of the usual length


class HandlerError(Exception):
    """What a handler raises when it fails."""


def open_queue(
    world: World,
    port: SimulatedPort,
    name: str = QUEUE,
    on_event: Callable[[QueueEvent], None] | None = None,
    *,
    asks: bool = True,
) -> RedisMessageQueue:
    """A queue object, as the constructor would make it for a real client, which asks for a journal or does not."""
    settings = world.plan.settings
    options = gateway_options(settings) if name == QUEUE else GatewayOptions(message_visibility_timeout_seconds=5.0)
    if not asks or (settings.asks_once and world.partitions() > settings.partitions):
        options = replace(options, journal=False)
    queue: RedisMessageQueue = object.__new__(RedisMessageQueue)
    described = QueueOptions(name=name, **settings.queue) if name == QUEUE else QueueOptions(name=name)
    if name == QUEUE:
        described = replace(described, on_event=on_event)
    keys, count = QueueKeys.of(name), world.partitions() if name == QUEUE else 1
    store = RedisStore(port, keys, options, Parts.of(port, keys, options, count))
    queue._protocol = QueueProtocol(described, store, ReceivedMessage)
    return queue


class Life:
    """One process of an actor, from its start until it ends, dies or is told to finish."""

    def __init__(self, world: World, actor: Actor, process: Process, nth: int) -> None:
        self.world = world
        self.actor = actor
        self.process = process
        self.random = Random(f"{world.plan.seed}/{actor.name}/{nth}")
        self.port = world.port(process, self.random)
        self.queue = open_queue(world, self.port, on_event=self._on_event)
        self.results = open_queue(world, self.port, RESULTS)
        self.finishing = False
        self.given_up: set[bytes] = set()  # tokens of messages that could not be settled, and are left to their leases
        self.main: asyncio.Task[Any] | None = None

    @property
    def is_at_work(self) -> bool:
        return not (self.process.is_dead or self.main is None or self.main.done())

    def _on_event(self, event: QueueEvent) -> None:
        if event.operation is EventOperation.CLEANUP_FAILED:
            self.give_up()
        if event.operation is EventOperation.ACK and event.outcome is EventOutcome.SUCCESS and event.message_id:
            self.world.check(self.world.ledger.acknowledged, event.message_id)

    def give_up(self) -> None:
        """Leave what this process knows it holds to the leases: not a claim without an answer, nor later ones."""
        self.given_up |= self.world.ledger.tokens_of(self.process)

    async def live(self) -> None:
        """Do what the actor does. Only documented errors may come out of the library."""
        await asyncio.sleep(self.actor.starts_at)
        work: Callable[[], Any] = getattr(self, f"_{self.actor.kind}")
        try:
            await work()
        except (RetryBudgetExhaustedError, CleanupFailedError, QueueDrainedError):
            self.give_up()
        except PartitionCountError:
            await self.world.restart(self)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.world.unexpected(self.process, error)

    async def _timed(self, what: str, work: Any, limit: float) -> Any:
        """Await a call that has a time limit."""
        loop, process = self.world.loop, self.process
        started, frozen = loop.time(), process.frozen_seconds
        try:
            return await work
        finally:
            took = loop.time() - started - (process.frozen_seconds - frozen)
            if took > limit + _SLACK and not process.is_dead:
                self.world.violated(
                    "bounded wait", f"{what} of {process} took {took:.3f} s, its limit is {limit:.3f} s"
                )

    # -- producers

    async def _producer(self) -> None:
        world, random = self.world, self.random
        amount = min(self.actor.amount, world.plan.messages or self.actor.amount)
        while world.produced[self.actor.name] < amount:
            world.produced[self.actor.name] += 1
            await asyncio.sleep(random.random() * random.choice((0.0, 0.05, 0.6)))
            if self.actor.concurrency > 1:
                await self._publish_together(self.actor.concurrency)
            elif random.random() < 0.25:
                await self._publish_many(random.randint(2, 5))
            else:
                await self._publish()
        world.finished.add(self.actor.name)

    def _message(self, details: dict[str, Any]) -> str:
        """A message that says which keys it is published with."""
        world, random = self.world, self.random
        key = f"k{random.randrange(world.plan.settings.keys)}" if world.plan.settings.keys else ""
        payload = world.new_payload(QUEUE, details["tenant"], key, self.actor.name)
        return f"{payload}~{details['partition_key']}" if "partition_key" in details else payload

    def _details(self) -> dict[str, Any]:
        settings, random = self.world.plan.settings, self.random
        details: dict[str, Any] = {"tenant": random.choice(settings.tenants)}
        if settings.most_partitions > 1 and random.random() < 0.3:
            details["partition_key"] = f"customer {random.randrange(5)}"
        if random.random() < settings.delayed:
            details["delay_seconds"] = random.choice((0.1, 1.0, 3.0))
        return details

    def _publish_limit(self) -> float:
        """Retries, what a full queue and a confirmation wait for, and the time of one attempt beyond that."""
        options = self.queue._protocol.store.options
        waits = options.confirm_timeout_seconds + options.pending_overload_block_timeout_seconds
        if not all(part.calls.is_prepared for part in self.queue._protocol.store.parts):
            waits += options.retry_budget_seconds  # for the journal or the weights of a partition whose node is away
        return options.retry_budget_seconds + waits + 2 * self.port.socket_timeout + self._first_contact()

    async def _publish(self) -> None:
        details = self._details()
        message = self._message(details)
        payload, world, repeat = message.encode(), self.world, None
        for _ in range(3):
            try:
                work = self.queue.publish(message, repeat_of=repeat, **details)
                result = await self._timed("publish", work, self._publish_limit())
                world.check(world.ledger.published, payload, result)
                return
            except PublishNotConfirmedError as error:
                repeat = error
            except QueueBackpressureError:
                world.check(world.ledger.publish_refused, payload)
                return
            except (RetryBudgetExhaustedError, LuaScriptError) as error:
                if isinstance(error, LuaScriptError) and "maxmemory" not in str(error):
                    raise
                return

    async def _publish_together(self, count: int) -> None:
        """Publish in several tasks; sometimes one of them is cancelled, and what becomes of its message is open."""
        tasks = [asyncio.ensure_future(self._publish()) for _ in range(count)]
        await self._end_together(tasks, cancels=self.random.random() < 0.3)

    async def _end_together(self, tasks: Sequence[asyncio.Future[None]], *, cancels: bool) -> None:
        """Wait for several tasks, and perhaps cancel one of them soon; raise what one of them has raised."""
        random = self.random
        try:
            if cancels:
                await asyncio.sleep(random.choice((0.0, 0.001, 0.01, 0.3)))
                random.choice(tasks).cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _publish_many(self, count: int) -> None:
        details = self._details()
        messages = [self._message(details) for _ in range(count)]
        world = self.world
        try:
            work = self.queue.publish_many(messages, **details)
            results = await self._timed("publish_many", work, self._publish_limit())
            for message, result in zip(messages, results, strict=True):
                world.check(world.ledger.published, message.encode(), result)
        except QueueBackpressureError as error:
            stored = list(getattr(error, "results", ()))  # of the chunks before the one that was refused
            for message, result in zip(messages, stored, strict=False):
                world.check(world.ledger.published, message.encode(), result)
            # Messages of other partitions may have been stored behind those.
            for message in messages[len(stored) :] if self.queue.partitions == 1 else ():
                world.check(world.ledger.publish_refused, message.encode())
        except (RetryBudgetExhaustedError, PublishNotConfirmedError):
            pass
        except LuaScriptError as error:
            if "maxmemory" not in str(error):
                raise

    # -- consumers

    async def _handle(self, payload: bytes, message: ReceivedMessage | None = None) -> None:
        """What a user's handler does: it takes its time, fails, hangs, or hands its result on."""
        world = self.world
        world.check(world.ledger.handler_started, self.process, payload, world.loop.time())
        world.trace("handler starts", self.process, payload.decode())
        world.outage.handlers_begin(self, [payload])
        try:
            await self._work_for(payload, message)
        finally:
            world.outage.handlers_end(self, [payload])

    async def _work_for(self, payload: bytes, message: ReceivedMessage | None) -> None:
        world, random, settings = self.world, self.random, self.world.plan.settings
        lease = settings.gateway["message_visibility_timeout_seconds"] or 2.0
        seconds = settings.handler_seconds * random.random()
        if random.random() < settings.hanging and not world.is_ending:
            seconds = lease * random.uniform(0.8, settings.longest_hanging)
        if seconds:
            await asyncio.sleep(seconds)
        if random.random() < settings.failing and not world.is_ending:
            world.trace("handler fails", self.process, payload.decode())
            raise HandlerError(payload.decode())
        if message is not None and random.random() < settings.handing_off:
            result = world.new_payload(RESULTS, None, "", self.process.name)
            world.check(world.ledger.handler_returned, self.process, payload)
            try:
                await message.complete([(self.results, result)])
            except LuaScriptError as error:
                if "maxmemory" not in str(error):
                    raise
                raise HandlerError("the server is full") from error
        world.trace("handler ends", self.process, payload.decode())
        world.check(world.ledger.handler_returned, self.process, payload)

    def _claim_limit(self, wait: float) -> float:
        """The wait and the time of one answer."""
        return wait + self.port.socket_timeout + self._first_contact()

    def _first_contact(self) -> float:
        """What a queue object that was never answered may take longer."""
        parts = self.queue._protocol.parts
        return 0.0 if all(one.store.calls.has_connected for one in parts) else 5.25

    async def _single(self) -> None:
        """Work in blocks, one after the other; with several tasks, their acknowledgements meet."""
        if self.actor.concurrency == 1:
            await self._work_in_blocks()
        else:
            tasks = [asyncio.ensure_future(self._work_in_blocks()) for _ in range(self.actor.concurrency)]
            await self._end_together(tasks, cancels=False)

    async def _work_in_blocks(self) -> None:
        wait = self.queue._protocol.store.options.message_wait_interval_seconds
        while not self.finishing:
            try:
                context = self.queue.process_message()
                payload = await self._timed("a claim", context.__aenter__(), self._claim_limit(wait))
                try:
                    if payload is None:
                        await asyncio.sleep(0.2 if not wait else 0.01)
                    else:
                        message = self.queue.current_message()
                        assert message is not None
                        await self._handle(_name(message), message)
                except BaseException as error:
                    await context.__aexit__(type(error), error, None)
                    raise
                else:
                    await context.__aexit__(None, None, None)
            except (HandlerError, CleanupFailedError, LeaseLostError, RetryBudgetExhaustedError):
                await asyncio.sleep(0.05)

    async def _collector(self) -> None:
        """Take what handlers have handed off."""
        while not self.finishing:
            with suppress(RetryBudgetExhaustedError, CleanupFailedError):
                async with self.results.process_message() as payload:
                    if payload is not None:
                        ledger = self.world.ledger
                        self.world.check(ledger.handler_started, self.process, payload, self.world.loop.time())
                        self.world.check(ledger.handler_returned, self.process, payload)

    async def _batch(self) -> None:
        random, wait = self.random, self.queue._protocol.store.options.message_wait_interval_seconds
        while not self.finishing:
            try:
                context = self.queue.process_messages(self.actor.size)
                batch = await self._timed("a claim", context.__aenter__(), self._claim_limit(wait))
                try:
                    await self._work_on(list(batch), batch, random)
                except BaseException as error:
                    await context.__aexit__(type(error), error, None)
                    raise
                else:
                    await context.__aexit__(None, None, None)
                if not batch:
                    await asyncio.sleep(0.2 if not wait else 0.01)
            except (HandlerError, CleanupFailedError, LeaseLostError, RetryBudgetExhaustedError):
                await asyncio.sleep(0.05)

    async def _work_on(self, messages: list[ReceivedMessage], batch: Any, random: Random) -> None:
        world = self.world
        for message in messages:
            if message.lease_lost:
                world.trace("skips", self.process, _name(message).decode())
                world.check(world.ledger.handler_returned, self.process, _name(message))
                continue
            try:
                await self._handle(_name(message), message)
            except HandlerError as error:
                if random.random() < 0.3:
                    raise
                await batch.fail(message, error)
            else:
                if random.random() < 0.3:
                    # A handler may have completed it itself.
                    with suppress(CleanupFailedError, ConfigurationError):
                        await batch.ack(message)

    async def _run(self) -> None:
        actor = self.actor
        in_batches = actor.size > 3 and actor.concurrency == 1
        batches: Any = {"batch_size": actor.size, "batch_seconds": 0.2} if in_batches else {}
        while not self.finishing:
            try:
                handle: Any = self._handle_batch if in_batches else self._handle_message
                await self.queue.run(
                    handle,
                    concurrency=actor.concurrency,
                    prefetch=None if in_batches or actor.size == 1 else actor.size,
                    **batches,
                )
                return
            except (RetryBudgetExhaustedError, CleanupFailedError, LeaseLostError) as error:
                self.world.outage.loop_raised(self, error)
                await asyncio.sleep(0.05)

    async def _until_empty(self) -> None:
        """Handle everything when the producers have finished; nobody else takes messages meanwhile."""
        world, others = self.world, {one.name for one in self.world.plan.actors if one.kind == "producer"}
        while not others <= world.finished:
            await asyncio.sleep(0.1)
        size, concurrency = self.actor.size, self.actor.concurrency
        prefetch = None if size == 1 else size
        unsettled, summary = False, None
        while summary is None:
            try:
                summary = await self.queue.run(
                    self._handle_message, prefetch=prefetch, concurrency=concurrency, until_empty=True
                )
            except RetryBudgetExhaustedError:  # a node of a cluster is away: nobody knows whether it has messages
                if world.plan.settings.nodes == 1:
                    raise
                unsettled = True
                await asyncio.sleep(0.3)
        # What was not acknowledged in time is left to its lease, and a node that fails over brings messages back.
        unsettled = unsettled or summary.unsettled > 0 or (world.plan.settings.nodes > 1 and world.has_lost_data)
        left = [one.decode() for one in world.ledger.unfinished()]
        if unsettled:
            left = [one for one in world.queue_names if world.ledger.has_messages(one, world.loop.clock_us())]
        if left and not self.finishing:
            world.violated("empty", f"a loop has ended, and messages are left: {len(left)}, such as {left[0]}")
        world.finished.add(self.actor.name)

    async def _handle_message(self, message: ReceivedMessage) -> None:
        await self._handle(_name(message), message)

    async def _handle_batch(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self.world.check(self.world.ledger.handler_started, self.process, _name(message), self.world.loop.time())
        payloads = [_name(message) for message in messages]
        self.world.outage.handlers_begin(self, payloads)
        try:
            await asyncio.sleep(self.world.plan.settings.handler_seconds)
        finally:
            self.world.outage.handlers_end(self, payloads)
        if self.random.random() < self.world.plan.settings.failing and not self.world.is_ending:
            raise HandlerError
        for message in messages:
            self.world.check(self.world.ledger.handler_returned, self.process, _name(message))

    async def finish(self, seconds: float) -> bool:
        """Be told to end: drain, as a program does that was asked to stop. Returns whether nothing is left."""
        self.finishing = True
        limit = seconds + self.port.socket_timeout
        try:
            drained = await self._timed("drain", self.queue.drain(seconds), limit)
        except PartitionCountError:
            await self.world.restart(self)
        return bool(await self._timed("drain", self.results.drain(seconds), limit) and drained)

    async def finish_gracefully(self) -> None:
        """Drain, let the handlers end, and hold nothing afterwards."""
        drained = await self.finish(10.0)
        while self.main is not None and not self.main.done():
            await asyncio.sleep(0.02)
        if not drained and self.actor.kind != "query":
            drained = await self.finish(10.0)
        if drained and self.actor.kind in ("single", "batch", "run"):
            self.world.check(self.world.ledger.drained, self.process, self.given_up)

    # -- operators

    async def _operator(self) -> None:
        random, queue = self.random, self.queue
        for _ in range(self.actor.amount):
            await asyncio.sleep(random.random() * 1.5)
            if self.world.is_ending:
                break
            choice = random.randrange(8)
            with _refusable(), suppress(QueueBackpressureError):
                if choice == 0:
                    await queue.stats()
                elif choice == 1:
                    await queue.peek(5)
                elif choice in (2, 3):
                    await queue.redrive_dead_letters(max_messages=random.randint(1, 5))
                elif choice == 4:
                    await queue.redrive_failed(max_messages=random.randint(1, 5))
                elif choice == 5:
                    await queue.tenants()
                elif choice == 6:
                    await queue.purge(target=random.choice(("completed", "failed")))
                else:
                    await queue.purge(target=random.choice(("pending", "delayed", "dead_letters")))

    async def _canceller(self) -> None:
        """Cancel messages: some that wait, as `peek` shows them, and some that are anywhere."""
        random, world = self.random, self.world
        for _ in range(self.actor.amount):
            await asyncio.sleep(random.random() * random.choice((0.0, 0.1, 0.8)))
            if world.is_ending:
                break
            waiting = world.ledger.ids(QUEUE, waiting=True)
            ids = waiting if waiting and random.random() < 0.7 else world.ledger.ids(QUEUE)
            if not ids:
                continue
            with _refusable():
                chosen = random.choice(ids)
                outcome = await self.queue.cancel(chosen.hex())
                if not world.has_lost_data:
                    world.check(world.ledger.cancelled, chosen, outcome)

    async def _pauser(self) -> None:
        """Pause and resume tenants. What is paused in the end, the resumer resumes."""
        random, tenants = self.random, [one for one in self.world.plan.settings.tenants if one]
        for _ in range(self.actor.amount):
            await asyncio.sleep(random.random() * 0.8)
            if self.world.is_ending:
                break
            change = random.choice((self.queue.pause, self.queue.pause, self.queue.resume))
            tenant, ledger = random.choice(tenants), self.world.ledger
            ledger.resumes(tenant)
            with suppress(RetryBudgetExhaustedError):
                await change(tenant=tenant)
                if change == self.queue.pause:
                    ledger.paused(tenant)

    async def _resumer(self) -> None:
        """Resume all tenants when a schedule is about to end, also those of a pause that arrives late."""
        while not self.finishing:
            for tenant in sorted({tenant for _, tenant in self.world.ledger.account.paused}):
                self.world.ledger.resumes(tenant)
                await self.queue.resume(tenant=tenant)
            await asyncio.sleep(0.25)

    async def _scheduler(self) -> None:
        """Define schedules, define them again, change and remove them. The unscheduler removes what is left."""
        random, world = self.random, self.world
        last: dict[str, dict[str, Any]] = {}
        for _ in range(self.actor.amount):
            await asyncio.sleep(random.random() * 1.2)
            if world.is_ending:
                break
            name, choice = random.choice(("hourly", "daily")), random.random()
            with _refusable():
                if choice < 0.2:
                    await self.queue.unschedule(name)
                    continue
                if choice < 0.7 or name not in last:
                    last[name] = self._definition(last.get(name), is_new=choice < 0.45)
                await self.queue.schedule(name, **last[name])

    async def _deployer(self) -> None:
        """Start a program that defines all of its schedules, with its own messages, about when their ticks are due."""
        random, world = self.random, self.world
        names = [f"report-{nth}" for nth in range(self.actor.size)]
        for _ in range(self.actor.amount):
            await asyncio.sleep(1 - world.loop.time() % 1 + random.uniform(0, 0.01))
            for name in random.sample(names, len(names)):
                if world.is_ending:
                    return
                with _refusable():
                    await self.queue.schedule(name, **self._definition({"every_seconds": 1.0}, is_new=False))

    def _definition(self, before: dict[str, Any] | None, *, is_new: bool) -> dict[str, Any]:
        """A schedule with a message of its own, at other times than before or at the same."""
        random, world = self.random, self.world
        tenant = random.choice(world.plan.settings.tenants)
        message = world.new_payload(QUEUE, tenant, "", self.actor.name) + MARK.decode()
        every = before["every_seconds"] if before and not is_new else random.choice((1.0, 1.5, 2.0))
        return {
            "message": message,
            "tenant": tenant,
            "every_seconds": every,
            "missed": random.choice(("one", "all", "skip")),
        }

    async def _unscheduler(self) -> None:
        """Remove all schedules when a run is about to end, also those of a definition that arrives late."""
        while not self.finishing:
            for schedule in await self.queue.schedules():
                await self.queue.unschedule(schedule.name)
            await asyncio.sleep(0.25)

    async def _grower(self) -> None:
        """Give the queue more partitions, again and again until it is done, or another operator has given it more."""
        settings = self.world.plan.settings
        count = settings.grows_to - 1 if self.actor.size > 1 else settings.grows_to
        while not self.finishing:
            try:
                queue = open_queue(self.world, self.port, asks=not settings.asks_once)
                await queue.grow_partitions(count)
                return
            except (RetryBudgetExhaustedError, ConfigurationError, LuaScriptError) as error:
                # A full server refuses it, and a queue that nobody has used yet cannot grow.
                if "which the queue has already" in str(error):
                    return
                if not isinstance(error, RetryBudgetExhaustedError) and not _refuses_growth(str(error)):
                    raise
            await asyncio.sleep(0.3)

    async def _importer(self) -> None:
        """Import a file again and again, from its beginning or from where it was interrupted."""
        random, world = self.random, self.world
        options = replace(gateway_options(world.plan.settings), message_deduplication_log_ttl_seconds=86_400.0)
        importer = Importer(RedisStore(self.port, QueueKeys.of(QUEUE), options).calls)
        if self.actor.name not in world.exports:
            world.exports[self.actor.name] = [self._exported() for _ in range(random.randint(2, 6))]
        messages = world.exports[self.actor.name]
        for _ in range(self.actor.amount):
            await asyncio.sleep(random.random() * 0.8)
            if world.is_ending:
                break
            first = random.randrange(len(messages))
            chunk = messages[first : first + random.randint(1, len(messages))]
            with _refusable():
                for one, is_new in zip(chunk, await importer.store(chunk), strict=True):
                    world.check(world.ledger.imported, one.payload, is_new)

    def _exported(self) -> TransferredMessage:
        random, world = self.random, self.world
        tenant = random.choice(world.plan.settings.tenants)
        now_us = world.loop.clock_us()
        return TransferredMessage(
            state="pending",
            payload=world.new_payload(QUEUE, tenant, "", self.actor.name).encode(),
            id=random.randbytes(16),
            tenant=(tenant or "").encode(),
            published_us=now_us,
            due_us=now_us + 2_000_000 if random.random() < 0.3 else 0,
            cancelled=random.random() < 0.2,
        )

    # -- streaming queries

    async def _query(self) -> None:
        world = self.world
        while not self.finishing:
            query = Query(self)
            renewal = asyncio.create_task(query.renew())
            try:
                await run_blocking(query.work)
            except (ConsumerGroupLostError, ConsumerGroupBusyError, RetryBudgetExhaustedError) as error:
                world.trace("query stops", self.process, type(error).__name__)
                await asyncio.sleep(0.5)
            except DataLossError as error:
                if not world.has_lost_data:
                    raise
                world.trace("query stops", self.process, type(error).__name__)
                await asyncio.sleep(0.5)
            except LuaScriptError as error:
                # A server that lost its last writes has not heard of the parts that this query has filled.
                if not world.has_lost_data or "OVERTAKEN" not in str(error):
                    raise
            finally:
                renewal.cancel()


@dataclass
class Checkpoint:
    """What Spark keeps outside of Redis: the sink's table, and the last batch that is in it."""

    committed: int = 0
    table: dict[int, tuple[bytes, ...]] = field(default_factory=dict)


class SimulatedReader(RedisReader):
    """The reader of a consumer group, over a simulated port."""

    def __init__(self, port: Any, keys: QueueKeys) -> None:
        self.port, self.keys, self.partition = port, keys, WHOLE
        self._client = None  # only asked for its address if the server refuses a password
        self.calls = Calls(port, keys, GatewayOptions(retry_budget_seconds=10))
        self._is_checked = True  # queues with partitions have no queries here


class Query:
    """A streaming query between two restarts: as Spark does, it commits a batch to its checkpoint before it acks it."""

    def __init__(self, life: Life) -> None:
        self._life, self._world = life, life.world
        gateway = life.world.plan.settings.gateway
        options = SimpleNamespace(
            queue=QUEUE,
            consumer_group=GROUP,
            lease_seconds=3.0,
            keys=QueueKeys.of(QUEUE),
            message_ttl_seconds=gateway.get("message_ttl_seconds"),
            max_delivery_count=gateway.get("max_delivery_count"),
            max_dead_letter_length=gateway.get("max_dead_letter_length"),
            invalid_payloads="fail",
        )
        port: Any = BlockingSimulatedPort(life.port)
        reader, holder = SimulatedReader(port, options.keys), life.random.randbytes(6).hex()
        self.group: Any = GroupPart(port, options, reader, holder)  # type: ignore[arg-type]
        # The next life of the query has another option minPartitions, and reads its batches as they were sealed.
        self._whole = ConsumerGroup([self.group], min_slices=int(holder, 16) % 4 + 1)

    async def renew(self) -> None:
        """Keep the group, beside the query's work."""
        group = self.group
        while True:
            await asyncio.sleep(group.lease_seconds / 4)
            if group.epoch:
                try:
                    await run_blocking(group.renew_lease)
                except (ConsumerGroupLostError, DataLossError, RetryBudgetExhaustedError):
                    return

    def work(self) -> None:
        group, checkpoint = self.group, self._world.checkpoint
        group.acquire_group(timeout_seconds=8)
        self._whole.recover()
        if group.sealed < checkpoint.committed:
            # Another query may have acquired the group since: then `skip_to` is refused.
            if self._epoch() == group.epoch:
                self._check_loss(f"batches up to {checkpoint.committed} were committed, and {group.sealed} are sealed")
            group.skip_to(checkpoint.committed)
        while not self._life.finishing:
            group.fill_batch(self._life.actor.size)
            self._whole.seal_batches()
            if checkpoint.committed == group.sealed:
                if self._world.is_ending and self._world.has_lost_data:
                    # As a query that starts again: a server that lost an ack gets it again with the next batch.
                    self._whole.recover()
                if checkpoint.committed > group.acked:
                    group.ack_batch(checkpoint.committed)
                self._whole.wait_for_wakeup()
                continue
            for number in range(checkpoint.committed + 1, group.sealed + 1):
                self._write(number)
            group.ack_batch(checkpoint.committed)
        group.release_lease()

    def _write(self, number: int) -> None:
        """Write one batch to the table, idempotently by its number."""
        group, world = self.group, self._world
        batch = group.batch(number)
        slices = [group.read_batch(number, start, stop) for start, stop in batch.edges] if batch else []
        members = [member for one in slices for member in one]
        epoch = self._epoch()
        block_on(asyncio.sleep(world.plan.settings.handler_seconds))
        if epoch != group.epoch or world.checkpoint.committed >= number:
            return  # Spark lets one query at a time commit to a checkpoint
        if batch is None:
            self._check_loss(f"batch {number} is gone before it was committed")
        else:
            world.check(world.ledger.batch_read, group.keys.group(GROUP), number, slices)
        payloads = tuple(name_of(one if one[0] >= 0x80 else one.partition(b":")[2]) for one in members)
        for payload in payloads:
            if payload in world.in_table and not world.has_lost_data:
                world.violated("batches", f"{payload.decode()} is in two batches of the table")
            world.in_table.add(payload)
        world.checkpoint.table[number] = payloads
        world.checkpoint.committed = number
        world.trace("commits", self._life.process, f"batch {number} with {len(payloads)} messages")

    def _epoch(self) -> int | None:
        """The epoch of the query that has the group."""
        return self._world.ledger.account.epochs.get(self.group.keys.group(GROUP))

    def _check_loss(self, what: str) -> None:
        if not self._world.has_lost_data:
            self._world.violated("batches", what)


def _name(message: ReceivedMessage) -> bytes:
    """What the oracle calls this message."""
    payload: Any = message.payload
    return named(payload if isinstance(payload, bytes) else str(payload).encode(), message.headers)


@contextmanager
def _refusable() -> Iterator[None]:
    """An operator gives up what a server that is full or out of reach does not do."""
    try:
        yield
    except RetryBudgetExhaustedError:
        pass
    except LuaScriptError as error:
        if "maxmemory" not in str(error):
            raise


def _refuses_growth(text: str) -> bool:
    return "maxmemory" in text or "there is no queue" in text
