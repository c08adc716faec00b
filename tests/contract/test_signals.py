"""Real workers that are stopped by real signals finish their messages and claim no more."""

import contextlib
import signal
import subprocess
import textwrap
from typing import Any

import pytest

from tests.contract.programs import running
from tests.contract.shells import LIMIT_SECONDS, Shell, take, until

pytestmark = [pytest.mark.topic("Interrupts"), pytest.mark.both_shells]

# A worker that was not stopped in time ends itself, and fails the test by how it ended. The runner may be a
# background job with SIGINT ignored, which children inherit: the defaults are put back first.
PREAMBLE = """
import asyncio, contextlib, os, signal, sys, threading, time
import redis, redis.asyncio
import redis_message_queue, redis_message_queue.asyncio
from redis_message_queue import EventDrivenInterruptHandler, GracefulInterruptHandler, QueueBackpressureError
signal.alarm(120)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
url = sys.argv[1]
LONG = 600
"""

# One text for sync and async: the async worker is the same with its calls awaited.
SOFT = """
interrupt = GracefulInterruptHandler()

{async_}def main():
    client = {redis}.from_url(url)
    queue = {module}.RedisMessageQueue(
        "q", client=client, interrupt=interrupt, message_wait_interval_seconds=LONG, enable_completed_queue=True
    )
    print("ready", flush=True)
    while not interrupt.is_interrupted():
        {async_}with queue.process_message() as message:
            if message is not None:
                print("at work", flush=True)
                while not interrupt.is_interrupted():
                    {await_}{sleep}(0.01)
                {await_}{sleep}(0.1)
    print("left", flush=True)
    {await_}client.{close}()

{run}
"""

DRAIN = """
{async_}def main():
    client = {redis}.from_url(url)
    queue = {module}.RedisMessageQueue(
        "q", client=client, message_wait_interval_seconds=LONG, enable_completed_queue=True
    )
    {owner}
    print("ready", flush=True)
    while not queue.is_draining:
        {async_}with queue.process_message() as message:
            if message is not None:
                print("at work", flush=True)
                while not queue.is_draining:
                    {await_}{sleep}(0.01)
                {await_}{sleep}(0.1)
    assert {await_}queue.drain(timeout=LONG) is True
    print("left", flush=True)
    {await_}client.{close}()

{run}
"""

WORDS = {
    "sync": {
        "async_": "",
        "await_": "",
        "sleep": "time.sleep",
        "close": "close",
        "run": "main()",
        "module": "redis_message_queue",
        "redis": "redis.Redis",
        "owner": "signal.signal(signal.SIGTERM, lambda *_: queue.drain(timeout=100))",
    },
    "asyncio": {
        "async_": "async ",
        "await_": "await ",
        "sleep": "asyncio.sleep",
        "close": "aclose",
        "run": "asyncio.run(main())",
        "module": "redis_message_queue.asyncio",
        "redis": "redis.asyncio.Redis",
        "owner": "asyncio.get_running_loop().add_signal_handler("
        "signal.SIGTERM, lambda: asyncio.ensure_future(queue.drain(timeout=100)))",
    },
}


def worker(shell: Shell, text: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return running(PREAMBLE + textwrap.dedent(text).format(**WORDS[shell.name]), shell.server.url)


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def leaves_well(process: subprocess.Popen[str]) -> bool:
    output, complaints = process.communicate(timeout=2 * LIMIT_SECONDS)
    assert (process.returncode, complaints) == (0, "")
    return output.strip() == "left"


@pytest.mark.promise(
    "After a signal, a consumer finishes its message and claims no other, so its process can exit normally."
)
@pytest.mark.promise("You can call `drain()` from a signal handler, a callback or a message handler.")
@pytest.mark.parametrize(
    ("text", "signum"),
    [(SOFT, signal.SIGINT), (SOFT, signal.SIGTERM), (SOFT, signal.SIGHUP), (DRAIN, signal.SIGTERM)],
    ids=["soft-SIGINT", "soft-SIGTERM", "soft-SIGHUP", "drain-SIGTERM"],
)
async def test_a_worker_in_its_handler_finishes_and_takes_nothing_more(shell: Shell, text: str, signum: Any) -> None:
    """The message in hand is acknowledged, the next one stays in the line, and the process ends by itself."""
    queue = shell.queue(wait=0)
    await queue.publish("in hand")
    await queue.publish("next")
    with worker(shell, text) as process:
        assert [says(process), says(process)] == ["ready", "at work"]
        process.send_signal(signum)
        assert leaves_well(process)
    assert shell.listed(queue.key.completed) == [b"in hand"]
    assert await take(queue) == b"next"
    assert shell.leftovers(queue) == {b"q::completed"}


@pytest.mark.promise("An interrupt ends a waiting claim promptly.")
@pytest.mark.promise("A drain ends a waiting claim.")
@pytest.mark.parametrize("text", [SOFT, DRAIN], ids=["soft", "drain"])
async def test_a_worker_that_waits_leaves_with_the_signal(shell: Shell, text: str) -> None:
    """Not at the end of its wait, which is ten minutes."""
    with worker(shell, text) as process:
        assert says(process) == "ready"
        assert await until(lambda: shell.redis.info("clients")["blocked_clients"] == 1)
        process.send_signal(signal.SIGTERM)
        assert leaves_well(process)
    assert shell.leftovers(shell.queue()) == set()
