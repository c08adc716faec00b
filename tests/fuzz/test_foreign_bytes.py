"""Another program writes into the keys of a queue: nothing stops it, and every other message is delivered once."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_message_queue import LuaScriptError, RedisMessageQueueError, StateVersionError
from redis_message_queue.stored.keys import KEY_MAP
from tests.fuzz import damage, snapshot
from tests.fuzz.effort import examples

PEEKED: tuple[Any, ...] = ("pending", "processing", "delayed", "completed", "failed", "dead_letters")
KEPT: tuple[Any, ...] = ("completed", "failed", "dead_letters")


class Operator:
    """Somebody who uses every operation of a queue, and remembers what was delivered."""

    def __init__(self, client: Any, url: str) -> None:
        self.client, self.url = client, url
        self.queue = damage.queue_on(client)
        self.delivered: list[str | bytes] = []
        self._new = 0

    def look(self) -> list[Any]:
        queue = self.queue
        looks: list[Any] = [queue.stats, queue.tenants, queue.schedules, queue.workers]
        looks += [partial(queue.why, "ab" * 16)]
        looks += [partial(queue.redrive_dead_letters, dry_run=True), partial(queue.redrive_failed, dry_run=True)]
        looks += [partial(queue.peek, 50, source=source) for source in PEEKED]
        looks += [partial(queue.peek, 5, tenant=tenant) for tenant in damage.TENANTS]
        return looks + [partial(queue.records, source) for source in KEPT]

    def publish(self) -> list[Any]:
        self._new += 1
        publish, new = self.queue.publish, f"new {self._new}"
        calls: list[Any] = [partial(publish, new), partial(self.queue.publish_many, [f"{new} of many"])]
        calls += [partial(publish, f"{new} delayed", delay_seconds=5)]
        calls += [partial(publish, f"{new} of {tenant}", tenant=tenant) for tenant in damage.TENANTS]
        return calls

    def consume(self) -> list[Any]:
        return [self._one, self._batch, self._all, self.queue.redrive_dead_letters, self.queue.redrive_failed]

    def _one(self) -> None:
        with self.queue.process_message() as payload:
            if payload is not None:
                self.delivered.append(payload)

    def _batch(self) -> None:
        with self.queue.process_messages(3) as batch:
            for one in batch:
                self.read(one)

    def _all(self) -> None:
        self.queue.run(self.read, until_empty=True, prefetch=5)

    def read(self, message: Any) -> None:
        _ = (message.tenant, message.headers, message.replay_of, message.published_at, message.attempt, repr(message))
        self.delivered.append(message.payload)

    def stream(self) -> None:
        group = damage.group_on(self.client, self.url)
        group.acquire_group(timeout_seconds=0)
        try:
            group.recover()
            group.batch_size(1)
            group.read_batch(1, 0, 10)
            group.depth()
            group.depth_and_age()
            group.fill_batch(1)
            group.seal_batch()
        finally:
            with suppress(LuaScriptError):  # of the same key of a wrong type
                group.release_batches()
                group.release_lease()

    def finish(self) -> None:
        """Let every lease and delay end until nothing is left that could be delivered."""
        for _ in range(4):
            damage.expire(self.client)
            self._all()


@pytest.fixture(scope="module")
def world(server):
    with server.client() as client:
        yield damage.build(client, server.url)


@pytest.fixture(scope="module")
def operator(server):
    with server.client() as client:
        yield Operator(client, server.url)


def test_the_queue_has_every_kind_of_key(world):
    """A key that is added to the key map must be damaged here too."""
    there = {key.decode().split("::")[1] for key in world.state}
    assert there - {"queues"} == {kind.word.partition("::")[0] for kind in KEY_MAP}


def prepared(world: damage.World, operator: Operator, seed: random.Random, *, wrong_type: bool) -> damage.Damage:
    """Restore the queue, let the operator use it, and damage one key."""
    snapshot.restore(operator.client, world.state)
    operator.delivered.clear()
    for call in operator.publish():
        call()  # so that its own reply key exists
    return damage.do_damage(operator.client, seed, wrong_type=wrong_type)


@examples(15, 3_000)
@given(seed=st.randoms(use_true_random=False))
def test_damaged_bytes_stop_nothing(world, operator, seed):
    """Every operation goes on; whoever was not touched is delivered once."""
    done = prepared(world, operator, seed, wrong_type=False)
    for call in (*operator.look(), *operator.publish()):
        attempt(call, done)
    for call in (*operator.consume(), *operator.look()):
        attempt(call, done)
    if done.is_version:
        operator.client.hset(damage.KEYS.meta, "version", "1")
    operator.finish()
    counts = Counter(one.decode("utf-8", "replace") for one in operator.delivered)
    touched = world.of(*done.before, *done.after) | world.of_group
    wrong = {one: counts[one] for one in set(world.payloads.values()) - touched if counts[one] != 1}
    assert not wrong, f"{done}: not delivered once: {wrong}"


def attempt(call: Any, done: damage.Damage) -> None:
    """Call it; only another version of the state may refuse it, and then nothing has changed."""
    try:
        call()
    except StateVersionError:
        assert done.is_version, done


@examples(15, 2_000)
@given(seed=st.randoms(use_true_random=False))
def test_a_streaming_query_meets_damaged_bytes(world, operator, seed):
    """It goes on, or says in one error which key holds a foreign value."""
    done = prepared(world, operator, seed, wrong_type=False)
    try:
        operator.stream()
    except LuaScriptError as error:
        assert done.key.startswith(b"jobs::group::") and "foreign value" in str(error), (done, error)
    except StateVersionError:
        assert done.is_version
    except RedisMessageQueueError as error:
        assert done.key == b"jobs::group::night", (done, error)  # its epoch or its holder


@examples(12, 2_000)
@given(seed=st.randoms(use_true_random=False))
def test_a_key_of_another_type_is_refused_whole(world, operator, seed):
    """The error is typed, no message moves, and all goes on when the key is gone."""
    done = prepared(world, operator, seed, wrong_type=True)
    client = operator.client
    for call in (*operator.look(), *operator.publish()):
        before = snapshot.take(client)
        try:
            call()
        except RedisMessageQueueError:
            assert snapshot.take(client) == before, done
    for call in (*operator.consume(), operator.stream):
        with suppress(RedisMessageQueueError):
            call()
    client.delete(done.key)
    for call in operator.publish():  # also brings back what only the key said
        call()
    operator.finish()
    assert operator.queue.stats().pending == 0
