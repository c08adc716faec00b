"""Writes docs/explanation/performance.md: the tables of a run, with its date, machine and versions."""

import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench.contender import ROOT
from bench.figures import Figures
from bench.report import NAMES, ratio

PATH = Path("docs", "explanation", "performance.md")
_ROWS = (
    *(
        ("sync", "publish"),
        ("sync", "dedup"),
        ("sync", "consume"),
        ("sync", "crowd"),
        ("async", "crowd"),
        ("sync", "publish_batch"),
        ("sync", "consume_batch"),
    ),
    *(("async", "publish"), ("async", "consume")),
)
_ABOUT = """# Performance

This page shows what a message costs with this library, compared with raw redis-py. The benchmark writes it: run
`python -m bench --write` on your own machine and server.

A figure is the speed relative to raw redis-py on the same interpreter, by CPU time of client and server together: 1.00
is as fast, 2.00 takes half of the time. Raw redis-py makes the fewest calls that do the same (`LPUSH`; `LMOVE` and
`LREM`; pipelines of 100), without leases, idempotence or deduplication across retries. Both encode dicts as JSON with
the standard library when they publish; beside hiredis, this library has orjson to check the keys. The async rows are
relative to raw redis-py with asyncio. Streams are `XADD`, `XREADGROUP`, `XACK` and `XDEL` through redis-py; the bare
socket sends the raw commands without any client. The [benchmark's own page](../../bench/README.md) explains how it
measures.

[The league](league.md) compares this library with other queues, and [Growth](growth.md) shows what happens to these
costs when a queue gets larger.
"""
_WHY = """
- **On the server.** A publish is a script: it looks for an earlier reply to the same call, checks the version of the
  state, reads the clock, stores the message and then its reply. These are five `redis.call`s, and twelve words, at 0.3
  µs each. Measured alone, an `LPUSH` costs the server 13.5 µs, of which 12 are a command that does nothing. An empty
  script with the same words costs 16, and then `GET` adds 1.4, `HMGET` 1.8, `TIME` 2.2, `LPUSH` 3.3 and `PSETEX` 2.9.
  So a script that only stored the message and its reply would still cost one and a half `LPUSH`. A claim and an ack
  have fifteen `redis.call`s in two scripts: besides the same checks,
  they write the message to `processing` and its lease to a sorted set, and remove both. `LPUSH` is one command, and
  `LMOVE` and `LREM` are two. This is the price of leases, fencing and calls that are safe to repeat. Claims
  and acks have [short scripts](../decisions/notes-on-speed.md#22-short-scripts-for-the-fast-path-of-claim-and-ack) for
  their fast path, and `run()` has one for both, with one round trip for each message.
- **In the client.** It packs the command itself, takes an open connection out of redis-py's pool for one exchange,
  writes to its socket and reads the reply without redis-py's command layer, pool and parser. [Decision
  19](../decisions/0019-direct-exchanges.md) says how, and when redis-py does the work after all: with TLS (sync), a
  blocking pool, health checks, a client of your own class, or `retry_budget_seconds=0`. What is left of a publish is
  about 40 % the exchange itself (system calls, and caches that are cold behind each wait), a fifth JSON, and the rest
  the protocol: two dozen Python functions. With orjson (the extra `speed`), the check of the keys takes no time.
- **Many callers.** Publishes that meet at one queue object share a request ([group
  commit](../decisions/0029-group-commit.md)), so 100 tasks pay for two round trips where raw redis-py makes a hundred.
- **In batches.** Encoding JSON is more than half of what `publish_many` costs in the client. So it can hardly be faster
  than the bare socket, which encodes the same messages. Of `process_messages` and its ack, the largest part is what the
  server does for each message: a field of a hash, a lease in a sorted set, and a text that Lua passes on. The [notes on
  speed](../decisions/notes-on-speed.md#batches) count it.

`hiredis` makes raw redis-py faster, and this library hardly: it reads the usual replies itself.
"""


def write(results: Figures) -> None:
    """Replace the page."""
    (ROOT / PATH).write_text("\n".join(_lines(results)).rstrip() + "\n")


def _lines(results: Figures) -> Iterator[str]:
    environment = results["environment"]
    versions = environment["contenders"]["library"]
    yield _ABOUT
    yield (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} with {environment['server']}, Python {versions['python']}, redis-py "
        f"{versions['redis']} and hiredis {versions['hiredis']},"
    )
    yield f"on {environment['cpus']} CPUs ({platform.machine()}, {platform.system()}), {environment['rounds']} rounds."
    yield "Client and server share one CPU, so that the figures contain the work alone. `±` is half of the range of the"
    yield "middle half of the rounds; the targets are in brackets.\n"
    if environment["load"] > environment["cpus"]:
        yield f"The machine was busy with other work: its load average was {environment['load']:g}. Then the caches are"
        yield "cold and the figures vary. Trust only differences that are larger than their `±`.\n"
    yield "| | with hiredis | without | Streams | bare socket |"
    yield "|---|---|---|---|---|"
    placement = "together" if any(row["placement"] == "together" for row in results["rates"]) else "free"
    for row in results["rates"]:
        if (row["shell"], row["workload"]) in _ROWS and row["placement"] == placement:
            yield _row(row)
    yield "\n![Speed relative to raw redis-py](performance.svg)"
    if results.get("due"):
        yield "\n## Delays\n"
        yield "How late a delayed message reaches a consumer that waits for it. This one is by the wall clock, so it"
        yield "depends on how busy the machine is.\n"
        yield "| | median | p90 | samples |"
        yield "|---|---|---|---|"
        for row in results["due"]:
            yield f"| {row['shell']} | {row['median_ms']:.1f} ms | {row['p90_ms']:.1f} ms | {row['samples']} |"
    yield "\n## Where the time goes\n"
    yield "Microseconds of CPU time for each message, with hiredis.\n"
    yield "| | client | server | raw client | raw server |"
    yield "|---|---|---|---|---|"
    for row in results["rates"]:
        if (row["shell"], row["workload"]) in _ROWS and row["placement"] == placement:
            yield _parts(row)
    yield _WHY


def _parts(row: Figures) -> str:
    """What client and server spend on one message."""
    found = [row["contenders"].get(name, {}) for name in ("library", "raw")]
    figures = [one.get(part) for one in found for part in ("client_us", "server_us")]
    return f"| {' | '.join([_title(row), *('' if one is None else f'{one:.1f}' for one in figures)])} |"


def _title(row: Figures) -> str:
    name = NAMES[row["workload"]]
    return name if row["shell"] == "sync" else f"async: {name}"


def _row(row: Figures) -> str:
    found = row["contenders"]
    cells = [
        _title(row),
        _with_target(ratio(found.get("library")), row["target"]),
        _with_target(ratio(found.get("library, plain")), row["target_plain"]),
        ratio(found.get("streams"), spread=False),
        ratio(found.get("socket"), spread=False),
    ]
    return f"| {' | '.join(cells)} |"


def _with_target(text: str, target: float | None) -> str:
    return text if not text or target is None else f"{text} ({target:g})"
