"""rmq bench: what a message costs on this machine, beside raw Redis."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli.frame import CommandLine, Output, ServerChoice

if TYPE_CHECKING:
    from redis_message_queue.cli.bench.measure import Figures

app = CommandLine()


@app.command()
def bench(
    output: Output,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Measure this server, and not one of its own. REDIS_URL is not looked at.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="More rounds, steadier figures.")] = 10,
    messages: Annotated[int, typer.Option(metavar="N", min=10, max=10_000, help="In a slice of a round.")] = 100,
) -> None:
    """Measure what a message costs on this machine, as a ratio to raw Redis.

    Raw Redis is the fewest redis-py calls that would do: LPUSH; LMOVE and LREM; pipelines of them. They know no leases,
    no retries and no fencing. In each round both do a slice of every kind of work, by turns; a ratio is taken within a
    round by CPU time, of this process and of the server, and the median of the rounds is shown with half of the range
    of the middle half. 1.0 is as fast as raw Redis, 0.5 takes twice as much.

    It brings its own server, without persistence. With --url it measures that one, under keys of its own which it
    removes; the CPU time of a server that others use as well is theirs too, so look at the wall clock there.
    """
    from redis_message_queue.cli.bench.contenders import PAYLOAD_BYTES
    from redis_message_queue.cli.bench.measure import WORKLOADS

    output.say(f"{rounds} rounds of {messages} messages of {PAYLOAD_BYTES} bytes and their batches")
    with contextlib.ExitStack() as stack:
        opened, pid = stack.enter_context(_client(url))
        step = stack.enter_context(_progress((rounds + 1) * len(WORKLOADS), silent=output.json))
        found = _measured(opened, pid, rounds, messages, step)
    output.table(found if output.json else map(_shown, found))


def _shown(figures: Figures) -> dict[str, Any]:
    return {
        "workload": figures.workload,
        "ratio": f"{figures.ratio:.2f} ± {figures.spread:.2f}",
        "by_wall_clock": f"{figures.wall_ratio:.2f}",
        "cpu_µs_a_message": round(figures.cpu_us, 1),
        "raw": round(figures.raw_cpu_us, 1),
        "messages_a_second": round(figures.messages_per_second),
        "raw ": round(figures.raw_messages_per_second),
    }


@contextlib.contextmanager
def _client(url: str | None) -> Iterator[tuple[Any, int | None]]:
    """A client, and the process of the server if it is ours."""
    from redis_message_queue.embedded import EmbeddedRedis

    if url is not None:
        with ServerChoice(url=url).client() as client:
            yield client, None
        return
    with EmbeddedRedis() as server, server.client() as client:
        yield client, server.pid


def _measured(client: Any, pid: int | None, rounds: int, messages: int, step: Callable[[], None]) -> list[Figures]:
    from redis_message_queue import RedisMessageQueue
    from redis_message_queue.cli.bench.contenders import Library, Raw
    from redis_message_queue.cli.bench.measure import measure
    from redis_message_queue.cli.bench.meter import Meter, together
    from redis_message_queue.cli.node import node_of

    # Names of one length, in one slot of a cluster.
    name = f"rmq-bench-{secrets.token_hex(4)}"
    queue = RedisMessageQueue(f"{{{name}}}lib", client=client)
    raw = [f"{{{name}}}raw::{word}" for word in ("pending", "processing")]
    node = node_of(client, queue.key.pending)
    try:
        with together(pid) if pid is not None else contextlib.nullcontext():
            contenders = Raw(node, *raw), Library(queue)
            return measure(*contenders, Meter(node), rounds=rounds, messages=messages, step=step)
    finally:
        clear(node, [*raw, *_keys_of(queue)])


def _keys_of(queue: Any) -> list[str]:
    """What a slice that was broken off may leave; the answers to its last calls expire by themselves."""
    key = queue.key
    return [key.pending, key.processing, key.leases, key.deliveries, key.bell, key.watch, key.meta]


def clear(node: Any, keys: list[str]) -> None:
    """Remove them, whatever the server is doing."""
    for key in keys:
        node.unlink(key)


@contextlib.contextmanager
def _progress(steps: int, *, silent: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr, for people who watch."""
    if silent or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=steps)
        yield lambda: progress.advance(task)
