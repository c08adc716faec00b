"""Processes that are started in any way, each with a client and a queue of its own; a queue does not travel to them."""

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
from tests.forks.crew import MESSAGES
from tests.forks.programs import run

# What the refusal has to say: what cannot be done, and what to do instead.
REFUSAL = "pickled.*make the client and (the )?queue in the process"


@pytest.mark.parametrize("way", ["spawn", "fork", "forkserver", "executor"])
def test_a_crew_shares_the_messages_of_its_parent(server, truth, way):
    """However a process was started: what it makes itself works. The parent's queue is refused before it is sent."""
    outcome = json.loads(run("crew.py", server.port, way))
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
def test_nothing_that_holds_a_client_is_pickled_or_copied(make, duplicate):
    """Two objects with the same call numbers would be given each other's answers; the error says what to do instead."""
    with pytest.raises(ConfigurationError, match=REFUSAL) as refused:
        duplicate(make())
    assert isinstance(refused.value, TypeError)  # what pickle raises by itself, and what its callers expect
