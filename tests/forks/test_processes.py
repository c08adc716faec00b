"""Processes started in any way, each with its own client and queue; a queue cannot be sent to them."""

import copy
import itertools
import json
import pickle
import re

import pytest
import redis
import redis.asyncio

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import ConfigurationError
from tests.forks.programs import run
from tests.forks.worker_processes import MESSAGES

pytestmark = pytest.mark.topic("Forks")


# The error has to say what is not possible, and what to do instead.
REFUSAL = "pickled.*make the client and (the )?queue in the process"


@pytest.mark.promise("Queues that a process creates after a fork work, whatever the start method.")
@pytest.mark.parametrize("way", ["spawn", "fork", "forkserver", "executor"])
def test_workers_share_the_messages_of_their_parent(server, truth, way):
    """However the process was started: its own queue works. The parent's queue is refused before it is sent."""
    outcome = json.loads(run("worker_processes.py", server.port, way))
    messages = sorted(f"message {number}" for number in range(MESSAGES))
    assert sorted(itertools.chain(*outcome["handled"])) == messages
    assert sorted(truth.completed) == sorted([b"of the parent", *(each.encode() for each in messages)])
    assert truth.is_empty
    assert way == "fork" or re.search(REFUSAL, outcome["refusal"]), outcome["refusal"]


def blocking_queue():
    return redis_message_queue.RedisMessageQueue("forks", client=redis.Redis())


def blocking_gateway():
    return redis_message_queue.RedisGateway(redis_client=redis.Redis())


def asyncio_queue():
    return redis_message_queue.asyncio.RedisMessageQueue("forks", client=redis.asyncio.Redis())


def asyncio_gateway():
    return redis_message_queue.asyncio.RedisGateway(redis_client=redis.asyncio.Redis())


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy], ids=["pickle", "deepcopy"])
@pytest.mark.parametrize(
    "make", [blocking_queue, blocking_gateway, asyncio_queue, asyncio_gateway], ids=lambda make: make.__name__
)
def test_objects_that_hold_a_client_are_neither_pickled_nor_copied(make, duplicate):
    """Two objects with the same call numbers would get each other's replies; the error says what to do instead."""
    with pytest.raises(ConfigurationError, match=REFUSAL) as refused:
        duplicate(make())
    assert isinstance(refused.value, TypeError)  # as pickle itself raises, and as its callers expect
