"""The options of `rmq` have the defaults of the library."""

import inspect
from dataclasses import fields

import pytest

from redis_message_queue import RedisMessageQueue, RetryPolicy
from redis_message_queue.cli.common_options import DeliveryOptions
from redis_message_queue.cli.publish import Backpressure, Deduplication
from redis_message_queue.cli.worker.worker_options import LoopOptions

pytestmark = pytest.mark.topic("Command line")

# Each with its reason: a command cannot renew a lease itself, and nothing is retried unless you ask for it.
DIFFERENT = {"heartbeat_interval_seconds", "max_attempts"}


@pytest.mark.promise("The options of `rmq` have the defaults of the library, but for the heartbeat of a lease.")
@pytest.mark.parametrize("group", [DeliveryOptions, Deduplication, Backpressure])
def test_options_of_a_queue_have_its_defaults(group):
    """0 stands for None, which a command line cannot pass."""
    ours = inspect.signature(RedisMessageQueue).parameters
    policy = {field.name: field.default for field in fields(RetryPolicy)}
    compared = 0
    for field in fields(group):
        if field.name in DIFFERENT or field.name.startswith("dedup_"):
            continue
        theirs = policy[field.name] if field.name in policy else ours[field.name].default
        assert (field.default or None) == (theirs or None) or (field.default is None and field.name in NAMED), (
            field.name
        )
        compared += 1
    assert compared


NAMED = {"max_delivery_count"}  # None is "not given" here: the library's own default applies


def test_the_worker_runs_as_the_loop_of_the_library_does():
    """How many handlers and messages at a time."""
    theirs = inspect.signature(RedisMessageQueue.run).parameters
    ours = {field.name: field.default for field in fields(LoopOptions)}
    assert ours == {name: theirs[name].default for name in ours}
