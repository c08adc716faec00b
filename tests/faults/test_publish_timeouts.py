"""A publish with `timeout_seconds` ends in time, and its error says whether anything was sent."""

import asyncio
import contextlib
import time
from functools import partial

import pytest

import redis_message_queue
from redis_message_queue import QueueBackpressureError, RetryBudgetExhaustedError
from redis_message_queue.values.errors import GatewayContractError
from tests.concurrency import LIMIT_SECONDS, start
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE
from tests.faults.shells import WAYS, AsyncioShell

pytestmark = pytest.mark.topic("Publishing")

# Far longer than any call here may take.
LONG_BUDGET = {"retry_budget_seconds": 4 * LIMIT_SECONDS, "retry_max_delay_seconds": 0.05}

CALLS = {
    "publish": lambda queue: queue.publish("a", timeout_seconds=0.3),
    "publish_many": lambda queue: queue.publish_many(["a", "b"], timeout_seconds=0.3),
    "submit": lambda queue: queue.submit("a", timeout_seconds=0.3),
    "submit_many": lambda queue: queue.submit_many(["a", "b"], timeout_seconds=0.3),
    "tenant": lambda queue: queue.tenant("acme").publish("a", timeout_seconds=0.3),
    "tenant, many": lambda queue: queue.tenant("acme").publish_many(["a"], timeout_seconds=0.3),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


def called(shell, call, queue):
    """Make the call, which must not take the budget. Returns its result or its error."""
    began = time.monotonic()
    try:
        return shell.runner.run(call(queue)) if isinstance(shell, AsyncioShell) else call(queue)
    except redis_message_queue.RedisMessageQueueError as error:
        return error
    finally:
        assert time.monotonic() - began < LIMIT_SECONDS


@pytest.mark.promise(
    "`publish(timeout_seconds=)` ends within that time plus one attempt, however long the retry budget is."
)
@pytest.mark.promise("`RetryBudgetExhaustedError.was_sent` is False only if nothing of a publish was sent.")
@every_call
@pytest.mark.parametrize("fault", [BLACK_HOLE, CUT_BEFORE, CUT_AFTER], ids=str)
def test_a_publish_that_gets_no_answer_ends_in_time(proxy, truth, shell, call, fault):
    """It may have been executed, and the error says so."""
    queue = shell.queue(shell.client(socket_timeout=4 * LIMIT_SECONDS), LONG_BUDGET)
    shell.publish(queue, "first")
    for script in ("publish", "enqueue"):
        proxy.always(script, fault)
    error = called(shell, call, queue)
    assert isinstance(error, RetryBudgetExhaustedError)
    assert error.was_sent
    assert "outcome is unknown" in str(error)
    assert error.queue == "faults"


@pytest.mark.promise(
    "`publish(timeout_seconds=)` ends within that time plus one attempt, however long the retry budget is."
)
@pytest.mark.promise("`RetryBudgetExhaustedError.was_sent` is False only if nothing of a publish was sent.")
@every_call
@pytest.mark.parametrize("way", WAYS)
def test_a_publish_to_a_server_that_is_gone_was_not_sent(start_server, way, call):
    """A client that is not redis-py's own sends by itself: what it has sent is not known."""
    with contextlib.closing(WAYS[way](start_server().port)) as shell:
        server = start_server()
        queue = shell.queue(shell.client(port=server.port), LONG_BUDGET)
        shell.publish(queue, "first")
        server.stop()
        if isinstance(shell, AsyncioShell):
            shell.runner.run(asyncio.sleep(0.01))  # in which the event loop sees that the connection was closed
        error = called(shell, call, queue)
        assert isinstance(error, RetryBudgetExhaustedError)
        assert error.was_sent is not shell.packs_by_hand
        assert ("nothing was sent" in str(error)) is shell.packs_by_hand


@pytest.mark.promise(
    "`publish(timeout_seconds=)` ends within that time plus one attempt, however long the retry budget is."
)
@every_call
@pytest.mark.parametrize("way", WAYS)
def test_a_publish_to_a_server_that_was_never_there_was_not_sent(dead_port, way, call):
    """First contact has 5 seconds at the most, and less if the call says so."""
    with contextlib.closing(WAYS[way](dead_port)) as shell:
        error = called(shell, call, shell.queue(gateway=LONG_BUDGET))
        assert isinstance(error, RetryBudgetExhaustedError)
        assert not error.was_sent
        assert "nothing was sent" in str(error)


@pytest.mark.promise(
    "`publish(timeout_seconds=)` ends within that time plus one attempt, however long the retry budget is."
)
@pytest.mark.promise("`RetryBudgetExhaustedError.was_sent` is False only if nothing of a publish was sent.")
def test_publishes_that_wait_for_another_one_end_in_time(proxy, truth, shell):
    """Whether they are sent with it, wait for it, or send the group: each by its own limit."""
    queue = shell.queue(shell.client(socket_timeout=4 * LIMIT_SECONDS), LONG_BUDGET)
    shell.publish(queue, "first")
    for script in ("publish", "enqueue"):
        proxy.always(script, BLACK_HOLE)
    limits = [0.2, 0.6, 0.4, 0.3]
    if isinstance(shell, AsyncioShell):

        async def publish_all():
            work = [queue.publish("a", timeout_seconds=limit) for limit in limits]
            async with asyncio.timeout(LIMIT_SECONDS):
                return await asyncio.gather(*work, return_exceptions=True)

        errors = shell.runner.run(publish_all())
    else:
        futures = [start(partial(queue.publish, "a", timeout_seconds=limit)) for limit in limits]
        errors = [future.exception(LIMIT_SECONDS) for future in futures]
    assert {type(error) for error in errors} == {RetryBudgetExhaustedError}
    assert [error.was_sent for error in errors] == ["outcome is unknown" in str(error) for error in errors]
    proxy.relent()
    assert called(shell, lambda queue: queue.publish("b", timeout_seconds=LIMIT_SECONDS), queue) is True


@pytest.mark.promise("The shorter one of `timeout_seconds` and the block timeout counts.")
@pytest.mark.parametrize("block_seconds", [0.01, 4 * LIMIT_SECONDS])
def test_the_shorter_one_of_both_timeouts_counts(proxy, truth, shell, block_seconds):
    """A full queue raises what a full queue raises."""
    options = {
        "max_pending_length": 1,
        "pending_overload_policy": "block",
        "pending_overload_block_timeout_seconds": block_seconds,
    }
    queue = shell.queue(gateway=LONG_BUDGET | options)
    shell.publish(queue, "first")
    for call in CALLS.values():
        error = called(shell, call, queue)
        assert isinstance(error, QueueBackpressureError)
        assert float(str(error).split(" for ")[1].split(" s")[0]) <= min(0.3, block_seconds)
    assert truth.pending == 1


@pytest.mark.promise(
    "`publish(timeout_seconds=)` ends within that time plus one attempt, however long the retry budget is."
)
def test_a_publish_that_succeeds_in_time_returns_as_ever(proxy, truth, shell):
    """Also after a fault."""
    queue = shell.queue(gateway=LONG_BUDGET)
    proxy.meet("publish", CUT_BEFORE, CUT_AFTER)
    assert called(shell, lambda queue: queue.publish("a", timeout_seconds=LIMIT_SECONDS), queue) is True
    assert called(shell, lambda queue: queue.publish_many(["b"], timeout_seconds=LIMIT_SECONDS), queue) == [True]
    assert truth.pending == 2


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "2"])
def test_a_time_limit_that_is_none_is_refused(proxy, truth, shell, timeout):
    """Nothing is sent."""
    queue = shell.queue()
    error = called(shell, lambda queue: queue.publish("a", timeout_seconds=timeout), queue)
    assert isinstance(error, redis_message_queue.ConfigurationError)
    assert "timeout_seconds" in str(error)
    assert error.queue == "faults"
    assert truth.pending == 0


def test_a_custom_gateway_refuses_a_time_limit(proxy, shell):
    """It sends as it likes, for as long as it likes."""

    def add_message(self, queue, message):
        raise AssertionError("nothing is sent")

    custom = type("Custom", (shell.gateway_class,), {"add_message": add_message})
    queue = shell.queue_class("faults", gateway=custom(redis_client=shell.client()))
    error = called(shell, CALLS["publish"], queue)
    assert isinstance(error, GatewayContractError)
    assert "timeout_seconds" in str(error)
