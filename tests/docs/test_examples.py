"""Every example runs, ends by itself and prints what its comments say."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from tests import fork_server
from tests.concurrency import until
from tests.docs.pages import DOCS, blocks_of

EXAMPLES = Path(__file__).parents[2] / "examples"

# The output of each example, in this order, with other lines between.
SAYS = {
    "send_messages.py": ["order 5: accepted", "order 1 again: seen before, suppressed", "order 6: published as a dict"],
    "receive_messages.py": ["processing: order 1", "processing: order 5", 'processing: {"order": 6', "done"],
    "asyncio/send_messages.py": ["order 5: accepted", "order 1 again: seen before, suppressed"],
    # Three concurrent consumers print in any order.
    "asyncio/receive_messages.py": [*["is processing: order "] * 5, "done"],
    "in_memory_gateway.py": [
        *("job 2: accepted", "job 1: seen before", "handled: job 1\ncompleted: ['job 1']"),
        "after two crashes: None, dead letters: ['job 2']",
    ],
    "asyncio/in_memory_gateway.py": [
        *("job 1: seen before", "handled: job 1", "the handler broke, failed: ['job 2']", "nothing left: None"),
    ],
    "production/backpressure.py": ["job 3: accepted", "job 4: refused", "6 jobs published, 3 at most waiting"],
    "production/asyncio/backpressure.py": ["done: job 1", "6 jobs published, 3 at most waiting", "done: job 6"],
    "production/graceful_shutdown.py": [
        "done: job 2\nstopped by a signal, 1 job left",
        "thread did: job 3\nstopped by an event",
    ],
    "production/asyncio/graceful_shutdown.py": ["is done: job 2", "stopped; jobs left for another process"],
    "production/observability.py": [
        "failed of message",
        "ack                success  2",
        "publish            success  3",
        "publish_dedup_hit  skipped  1",
        "slowest of 2 handled messages",
    ],
    "production/asyncio/observability.py": ["main: publish success", "worker 2: claim success", "ack success"],
    "production/heartbeats.py": [
        "after 1.5 s with a lease of 1 s: 1 in flight, 0 waiting",
        "done after 2.5 s, at delivery 1",
    ],
    "production/asyncio/heartbeats.py": ["in a thread: the lease was kept", "in the event loop: the lease was lost"],
    # Their READMEs show the whole output.
    "shop/shop.py": ["accepted, 2 suppressed", "killed (signal 9)", "CardDeclinedError: card declined"],
    "exports/exports.py": ["huge asks for 1000 exports: 200 accepted", "62 exports made, 0 in the dead letters"],
    "production/dead_letters.py": [
        "handling: poison\n  crashed",
        "handling: poison\n  crashed",
        "alert: a message went to the dead letters after 2 deliveries",
        "handling: harmless",
        "dead letter: poison, delivered 2 times\n1 message is pending again",
    ],
}
# Examples that need Spark: tests/spark/test_example.py runs them.
WITH_SPARK = {"sales/sales.py"}
# Examples that need another one first, which leaves them something to do.
AFTER = {
    "receive_messages.py": "send_messages.py",
    "asyncio/receive_messages.py": "asyncio/send_messages.py",
}
MESSAGES = (b"::pending", b"::processing", b"::completed", b"::failed", b"::dlq")


def run(example: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / example)]
    return fork_server.run(command, env=os.environ | {"REDIS_URL": url})


def in_order(wanted: list[str], text: str) -> bool:
    for piece in wanted:
        _, found, text = text.partition(piece)
        if not found:
            return False
    return True


def shown_in(page: Path) -> str:
    """The output that a README shows."""
    return blocks_of(page, "text")[0].code


def test_every_example_is_run_here():
    files = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*") if path.suffix == ".py"}
    assert files == SAYS.keys() | WITH_SPARK


@pytest.mark.parametrize("example", SAYS)
def test_an_example_succeeds_and_prints_what_it_shows(example, clean_server, client):
    if example in AFTER:
        assert run(AFTER[example], clean_server.url).returncode == 0
    ended = run(example, clean_server.url)
    assert ended.returncode == 0, ended.stderr
    assert in_order(SAYS[example], ended.stdout), ended.stdout
    page = (EXAMPLES / example).with_name("README.md")
    if page.exists() and page.parent != EXAMPLES:
        assert shown_in(page) == ended.stdout
    # The next run would find and show what this one leaves behind.
    if example not in AFTER.values():
        assert [key for key in client.scan_iter() if key.endswith(MESSAGES)] == []


def test_the_loop_of_the_readme_stops_gracefully(clean_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Its code as it stands there, with a handler that is at work when the signal comes."""
    (code,) = [
        block.code
        for block in blocks_of(DOCS.parent / "README.md", "python")
        if "run(handle, concurrency" in block.code
    ]
    began = tmp_path / "began"
    slow = f"    import pathlib, time; pathlib.Path({str(began)!r}).touch(); time.sleep(0.2)\n"
    code = code.replace("redis://localhost:6379/0", clean_server.url).replace("    print(f", f"{slow}    print(f", 1)
    with clean_server.client() as client:
        queue = RedisMessageQueue("orders", client=client)
        queue.publish({"number": 1, "customer": "acme"})
        command = [sys.executable, "-W", "error", "-c", code]
        with fork_server.Program(command, stdout=subprocess.PIPE, text=True) as program:
            try:
                until(began.exists)
                program.send_signal(signal.SIGTERM)
                said, _ = program.communicate(timeout=120)
            finally:
                program.kill()
        assert (program.returncode, said) == (0, "order 1 for acme, attempt 1\n1\n")
        assert queue.stats().processing == 0
