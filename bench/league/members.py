"""Who takes part in the league: the packages, the command of the worker, and what makes the comparison unfair."""

from dataclasses import dataclass

REDIS = ("redis==8.1.0", "hiredis==3.2.1")


@dataclass(frozen=True)
class Member:
    """A queue on Redis. In `worker`, {bin} is the directory of its commands and {url} the server."""

    name: str
    adapter: str
    packages: tuple[str, ...]
    worker: tuple[str, ...]
    guarantee: str
    unfair: str
    settings: str = ""
    python: tuple[int, int] = (3, 11)
    consume: int = 2_000
    batches: bool = False
    in_flight: int = 1
    # What the worker's command needs besides, to run so many handlers at the same time; None if it cannot.
    crowd: tuple[str, ...] | None = ()

    @property
    def shown_packages(self) -> list[str]:
        return [package.partition("[")[0].partition("=")[0] for package in self.packages]


def _own(adapter: str) -> tuple[str, ...]:
    return ("{bin}/python", "-m", "bench.league.work", adapter)


RAW, LIBRARY = "redis-py", "this library"
_ADAPTERS = "bench.league.adapters"

MEMBERS = (
    Member(
        name=LIBRARY,
        adapter="library",
        packages=(*REDIS, "orjson==3.13.0"),
        worker=_own("library"),
        guarantee="at least once, idempotent publish, fenced leases",
        unfair="It was written by the authors of this comparison. One message at a time, by `run()` with its defaults.",
        settings="`visibility_timeout_seconds=5`",
        batches=True,
    ),
    Member(
        name=RAW,
        adapter="raw",
        packages=REDIS,
        worker=_own("raw"),
        guarantee="none: what a dead worker held stays in a list",
        unfair="The yardstick: as few commands as possible, no retries of its own, no recovery.",
        batches=True,
    ),
    Member(
        name="Streams",
        adapter="streams",
        packages=REDIS,
        worker=_own("streams"),
        guarantee="at least once",
        unfair="No library: no deduplication, delays, dead letters or limits; a publish that is sent again is doubled.",
        settings="`XAUTOCLAIM` after 5 s",
        batches=True,
    ),
    Member(
        name="redis-message-queue",
        adapter="namesake",
        packages=("redis-message-queue==8.4.2", *REDIS),
        worker=_own("namesake"),
        guarantee="at least once",
        unfair="The version whose documentation this library started from; it needs Python 3.12. The loop is that of "
        "its documentation.",
        settings="`visibility_timeout_seconds=5`",
        python=(3, 12),
        consume=1_000,
    ),
    Member(
        name="rq",
        adapter="rq",
        packages=("rq", *REDIS),
        worker=(
            *("{bin}/rq", "worker", "--quiet", "--url", "{url}", "--job-monitoring-interval", "5"),
            *("--maintenance-interval", "5", "league"),
        ),
        crowd=None,
        guarantee="at most once, or again after a failure (`Retry`)",
        unfair="Its worker forks a process for each job, which isolates jobs and costs most of what is measured; it "
        "stores each job as a hash with a result.",
        settings="`Retry(max=10)`, intervals of 5 s",
        consume=60,
    ),
    Member(
        name="dramatiq",
        adapter="dramatiq",
        packages=("dramatiq[redis]", *REDIS),
        worker=("{bin}/dramatiq", "--processes", "1", f"{_ADAPTERS}.dramatiq"),
        crowd=("--threads", "{concurrency}"),
        guarantee="at least once",
        unfair="One process instead of two, with its eight threads; a middleware stack with time limits and retries.",
        settings="`heartbeat_timeout` 5 s, `maintenance_chance` 200,000",
        in_flight=8,
        consume=1_000,
    ),
    Member(
        name="huey",
        adapter="huey",
        packages=("huey", *REDIS),
        worker=("{bin}/huey_consumer", "--quiet", f"{_ADAPTERS}.huey.huey"),
        crowd=("--workers", "{concurrency}"),
        guarantee="at most once",
        unfair="It pops a task before it runs it, so there is nothing to acknowledge.",
        settings="none to set",
        consume=1_000,
    ),
    Member(
        name="taskiq",
        adapter="taskiq",
        packages=("taskiq", "taskiq-redis", *REDIS),
        worker=("{bin}/taskiq", "worker", "--workers", "1", "--log-level", "WARNING", f"{_ADAPTERS}.taskiq:broker"),
        crowd=("--max-async-tasks", "{concurrency}"),
        guarantee="at least once (stream broker)",
        unfair="asyncio, with up to 100 tasks at the same time; its stream keeps acknowledged messages, as it does by "
        "default.",
        settings="`idle_timeout` 5 s, `unacknowledged_lock_timeout` 5 s",
        in_flight=8,
        consume=1_000,
    ),
    Member(
        name="arq",
        adapter="arq",
        packages=("arq", "hiredis==3.2.1"),
        worker=("{bin}/arq", f"{_ADAPTERS}.arq.WorkerSettings"),
        guarantee="at least once",
        unfair="asyncio, ten jobs at the same time; polls every half second; needs redis-py 5; keeps results for an "
        "hour.",
        settings="`job_timeout` 5 s",
        in_flight=8,
        consume=500,
    ),
    Member(
        name="saq",
        adapter="saq",
        packages=("saq", "typing_extensions", *REDIS),
        worker=("{bin}/saq", "--quiet", f"{_ADAPTERS}.saq.settings"),
        guarantee="at least once (with retries)",
        unfair="asyncio, ten jobs at the same time; each job has a status and a result.",
        settings="`timeout` 5 s, `retries` 10, sweep every second",
        in_flight=8,
        consume=1_000,
    ),
    Member(
        name="celery",
        adapter="celery",
        packages=("celery", "packaging", *REDIS),
        worker=("{bin}/celery", "-A", f"{_ADAPTERS}.celery", "worker", "--concurrency", "1", "--loglevel", "ERROR"),
        crowd=("--pool", "threads", "--concurrency", "{concurrency}"),
        guarantee="at least once (`acks_late`), else at most once",
        unfair="One process instead of one for each CPU; a protocol that also works with other brokers; no results "
        "backend.",
        settings="`acks_late`, `reject_on_worker_lost`, `visibility_timeout` 5 s",
        consume=500,
    ),
    Member(
        name="bullmq",
        adapter="bullmq",
        packages=("bullmq", *REDIS),
        worker=_own("bullmq"),
        guarantee="at least once",
        unfair="The Python port of a Node.js library; keeps completed jobs, as it does by default.",
        settings="`lockDuration` 5 s, `stalledInterval` 1 s",
        consume=1_000,
    ),
    Member(
        name="streaq",
        adapter="streaq",
        packages=("streaq", *REDIS),
        worker=("{bin}/streaq", "run", f"{_ADAPTERS}.streaq:worker"),
        guarantee="at least once",
        unfair="asyncio through anyio and coredis, 16 tasks at the same time; keeps results.",
        settings="`idle_timeout` 5 s, `max_tries` 10",
        in_flight=8,
        consume=500,
    ),
    Member(
        name="repid",
        adapter="repid",
        packages=("repid[redis]", "typing_extensions", "hiredis==3.2.1"),
        worker=_own("repid"),
        guarantee="at least once (streams)",
        unfair="asyncio, with up to 1,000 tasks at the same time; needs redis-py 7.",
        settings="`min_idle_ms` 5 s, `claim_interval` 1 s",
        in_flight=8,
        consume=1_000,
    ),
    Member(
        name="faststream, lists",
        adapter="faststream_lists",
        packages=("faststream[redis,cli]", "hiredis==3.2.1"),
        worker=("{bin}/faststream", "run", "--log-level", "warning", f"{_ADAPTERS}.faststream_lists:app"),
        guarantee="at most once",
        unfair="It pops a message before it runs its handler; asyncio, one handler at a time unless told otherwise.",
        settings="none to set",
        consume=1_000,
    ),
    Member(
        name="faststream, streams",
        adapter="faststream_streams",
        packages=("faststream[redis,cli]", "hiredis==3.2.1"),
        worker=("{bin}/faststream", "run", "--log-level", "warning", f"{_ADAPTERS}.faststream_streams:app"),
        guarantee="at least once for the same consumer name",
        unfair="asyncio, one handler at a time unless told otherwise; its stream keeps acknowledged messages.",
        settings="none to set",
        consume=1_000,
    ),
)
