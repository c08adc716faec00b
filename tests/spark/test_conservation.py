"""After everything that can go wrong, the archive and the report of a real queue account for every message."""

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis

from redis_message_queue import QueueBackpressureError, RedisMessageQueue
from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
from redis_message_queue.spark.jobs.page import render_page
from redis_message_queue.spark.jobs.report import statistics_of
from tests.concurrency import until
from tests.depth import often
from tests.faults.proxy import CUT_AFTER, CUT_BEFORE, FaultyProxy
from tests.fork_server import Program
from tests.pipeline import expected_statistics
from tests.pipeline.plain_archiver import archive_plainly, run_mortal
from tests.pipeline.queue_scenarios import EVENTS, QueueScenario, told

pytestmark = pytest.mark.topic("Data pipeline")


ROOT = Path(__file__).parents[2]
SCRIPTS = ("publish", "enqueue", "claim", "settle", "requeue", "retry_later", "hand_off", "redrive", "sweep")
TENANTS = (None, None, "acme", "globex", "initech")


@pytest.fixture
def options(clean_server, tmp_path):
    return ArchiveOptions(url=clean_server.url, queue="orders", path=str(tmp_path / "archive"))


class Chaos:
    """Consumers that are killed, replies that are lost, and everybody publishing and purging beside them."""

    def __init__(self, client, proxy: FaultyProxy, seed: int) -> None:
        self.client, self.proxy, self.chance = client, proxy, random.Random(seed)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.life = QueueScenario(proxy_client(proxy), journal="payload")

    @contextmanager
    def crew(self, size: int) -> Iterator[None]:
        try:
            self.workers = [self.start() for _ in range(size)]
            yield
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()

    def start(self) -> "subprocess.Popen[bytes]":
        arguments = (str(self.proxy.port), str(self.chance.getrandbits(32)))
        return Program([sys.executable, "-W", "error", "-m", "tests.pipeline.killable_worker", *arguments], cwd=ROOT)

    def kill_one(self) -> None:
        """As soon as somebody has something in his hands."""
        until(lambda: self.client.hlen(self.life.queue.key.processing))
        place = self.chance.randrange(len(self.workers))
        self.workers[place].kill()
        self.workers[place].wait()
        self.workers[place] = self.start()

    def lose_replies(self) -> None:
        for name in SCRIPTS:
            self.proxy.meet(name, self.chance.choice((CUT_AFTER, CUT_BEFORE)))

    def publish(self, count: int) -> None:
        for place in range(0, count, 20):
            messages = [f"order {self.chance.randrange(count)}" for _ in range(20)]  # some of them twice
            delay = self.chance.choice((None, None, 0.05))
            self.life.queue.publish_many(messages, tenant=self.chance.choice(TENANTS), delay_seconds=delay)
            self.life.queue.publish(f"single {place} {self.chance.random()}")

    def crowd_out(self) -> None:
        """More than fit, and the oldest go."""
        rules = {"max_pending_length": 5, "pending_overload_policy": "drop_oldest", "max_delivery_count": None}
        queue = self.life.under(**rules)
        for place in range(10):
            with contextlib.suppress(QueueBackpressureError):  # its own line may have nothing that could go
                queue.publish(f"crowd {place} {self.chance.random()}", tenant=self.chance.choice(TENANTS))

    def grow_old(self) -> None:
        stale = self.life.under(message_ttl_seconds=0.001)
        stale.publish(f"stale {self.chance.random()}")
        with stale.process_messages(3, wait_seconds=0):
            pass

    def operate(self) -> None:
        self.life.queue.redrive_dead_letters()
        self.life.queue.tenant("globex").delete()
        self.life.queue.purge("completed")


def proxy_client(proxy: FaultyProxy):
    return redis.Redis(host="127.0.0.1", port=proxy.port)


@pytest.mark.promise(
    "A report balances after killed consumers, lost replies, a killed archive and every operator action."
)
@pytest.mark.in_full
def test_after_chaos_every_message_is_accounted_for(spark, clean_server, client, options):
    """Killed consumers, lost replies, duplicates, retries, dead letters, purges; the archive is killed in between."""
    with FaultyProxy(clean_server.port) as proxy:
        chaos = Chaos(client, proxy, seed=7)
        chaos.life.everything()  # so that no event is left to chance
        with chaos.crew(2):
            for kind in ("written", "committed", "0")[: often(1, 3)]:
                chaos.publish(100)
                chaos.lose_replies()
                chaos.kill_one()
                chaos.crowd_out()
                chaos.grow_old()
                chaos.operate()
                chaos.kill_one()
                run_mortal(clean_server, kind, options.path, 100)
                archive_plainly(options)
        chaos.publish(20)
    archive(spark, options)
    found, events = statistics_of(spark, options.path, "orders"), told(client)
    conservation = found.summary["conservation"]
    assert conservation["verdict"] == "balanced", conservation
    expected_statistics.agrees(found, events)
    stats = RedisMessageQueue("orders", client=client).stats()
    assert conservation["held"] == stats.pending + stats.processing + stats.delayed > 0
    seen = {event["event"] for event in events}
    assert seen == EVENTS - {"gap"}
    assert f"<b>{conservation['verdict']}</b>" in render_page(found, datetime.now(UTC))


@pytest.mark.promise("The figures of a report equal those of a plain loop over the same journal.")
@pytest.mark.in_full  # the test above counts the same events, among others
def test_each_event_of_a_real_queue_is_counted_as_a_plain_loop_counts_it(spark, client, options):
    QueueScenario(client).everything()
    archive_plainly(options)
    found = statistics_of(spark, options.path, "orders")
    expected_statistics.agrees(found, told(client))
    assert found.summary["conservation"]["verdict"] == "balanced", found.summary["conservation"]
    assert found.summary["conservation"]["held"] == 3


@pytest.mark.promise(
    "If entries are missing, or messages are older than the journal, a report says what is unknown instead of that it "
    "balances."
)
@pytest.mark.in_full  # tests/pipeline has the verdicts
def test_what_was_cut_off_before_it_was_archived_is_never_called_balanced(spark, client, options):
    """A real queue that writes more than its hard limit while nobody archives."""
    life = QueueScenario(client, max_journal_length=10)
    life.handle()
    archive_plainly(options)
    for _ in range(30):
        life.queue.publish_many([f"{life.queue.stats().pending} {place}" for place in range(10)])
    archive_plainly(options)
    found = statistics_of(spark, options.path, "orders")
    conservation = found.summary["conservation"]
    assert conservation["verdict"] == "unknown"
    assert conservation["missing_serials"] > 100
    assert f"{conservation['missing_serials']:,} journal entries are not in the archive" in render_page(
        found, datetime.now(UTC)
    )
    (gap, *_) = [event for event in told(client) if event["event"] == "gap"]
    assert gap.keys() == {"n", "event", "first", "count"}


@pytest.mark.promise(
    "If entries are missing, or messages are older than the journal, a report says what is unknown instead of that it "
    "balances."
)
@pytest.mark.in_full
def test_a_journal_that_begins_late_says_so(spark, client, options):
    """What lay there before is neither a loss nor a balance."""
    RedisMessageQueue("orders", client=client).publish_many(["old 1", "old 2"])
    QueueScenario(client).queue.publish("new")
    archive_plainly(options)
    conservation = statistics_of(spark, options.path, "orders").summary["conservation"]
    assert (conservation["verdict"], conservation["held"]) == ("unknown", 3)
    assert "2 messages that are not in the journal" in conservation["because"]
