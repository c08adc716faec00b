"""The sync shell runs a coroutine of the protocol in one step, because its port never suspends."""

import pytest

from redis_message_queue.protocol.port import finish
from tests.protocol.port import Turn
from tests.protocol.setup import Setup


def test_the_result_of_a_coroutine_comes_back():
    async def work() -> str:
        return "done"

    assert finish(work()) == "done"


def test_an_error_of_a_coroutine_comes_through_as_itself():
    async def work() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError, match="a"):
        finish(work())


def test_a_coroutine_that_suspends_is_closed_and_refused():
    """It awaited something that is not its port: a mistake in the protocol, not in the user's program."""
    steps = []

    async def work() -> None:
        try:
            steps.append("begun")
            await Turn()
            steps.append("gone on")
        finally:
            steps.append("closed")

    suspended = work()
    with pytest.raises(RuntimeError, match="not its port"):
        finish(suspended)
    assert steps == ["begun", "closed"]


def test_a_port_that_suspends_cannot_serve_the_blocking_shell():
    setup = Setup()
    queue = setup.queue(setup.port(suspends=True))
    with pytest.raises(RuntimeError, match="not its port"):
        finish(queue.publish("a"))
    assert setup.pending == []
