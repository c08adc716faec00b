"""Whatever somebody passes to the testing tools: a typed error that names the parameter, and nothing lost or killed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redis_message_queue import testing
from redis_message_queue.values.errors import RedisMessageQueueError
from tests.fuzz import snapshot
from tests.fuzz.effort import examples
from tests.fuzz.shells import Shell
from tests.fuzz.values import anything, shown

QUEUE = "jobs"
# A first argument that is no queue is called by what it should have been.
NAMED_AS = {"queue_or_client": "queue"}


def _handler(message: Any) -> None:
    testing.kill_here()


@pytest.fixture
def shell(clean_server):
    opened = Shell(clean_server, is_async=False)
    yield opened
    opened.close()


@pytest.mark.parametrize("tool", ["fast_forward", "lose_reply", "lose_request", "deliver_twice", "kill_and_redeliver"])
def test_every_parameter_of_a_tool(shell, client, tool):
    """What is refused has changed nothing."""
    function = getattr(testing, tool)
    usual = {
        "fast_forward": {"client": client, "seconds": 1},
        "deliver_twice": {"handler": _handler},
        "kill_and_redeliver": {"handler": _handler},
    }.get(tool, {})

    @examples(25, 1_000)
    @given(data=st.data())
    def search(data: st.DataObject) -> None:
        accepted = [
            one.name for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_POSITIONAL
        ]
        parameter = data.draw(st.sampled_from(accepted), label="parameter")
        value = data.draw(anything, label="value")
        assume(not (parameter == "handler" and callable(value)))  # what a handler does is the user's own
        client.flushall()
        queue = shell.queue(QUEUE, message_wait_interval_seconds=0)
        shell.call(queue.publish, "first")
        before = snapshot.take(client)
        first = {name: queue for name in ("queue", "queue_or_client") if name in accepted}
        try:
            result = function(**first | usual | {parameter: value})
            if isinstance(result, testing.Loss):
                result.stop()
        except RedisMessageQueueError as error:
            about = f"{tool}({parameter}={shown(value)}): {error}"
            assert NAMED_AS.get(parameter, parameter) in str(error) or isinstance(error, testing.FaultInjectionError), (
                about
            )
            assert isinstance(error, testing.FaultInjectionError) or snapshot.take(client) == before, about

    search()
