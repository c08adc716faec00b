"""A server that is away stops its own messages only, whichever loop serves it."""

import contextlib
import threading
import time
from functools import partial

import pytest

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import CleanupFailedError, RetryBudgetExhaustedError
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.shells import WAYS, AsyncioShell

pytestmark = pytest.mark.topic("The consumer loop")

LONG_BUDGET = {"retry_budget_seconds": 4 * LIMIT_SECONDS, "retry_max_delay_seconds": 0.1}


@pytest.fixture
def servers(start_server):
    """Two servers that lose nothing when they are killed."""
    return [start_server(append_only=True, config={"appendfsync": "always"}) for _ in range(2)]


@pytest.fixture(params=WAYS)
def shell(request, servers):
    """Clients of the first server, or of another port."""
    with contextlib.closing(WAYS[request.param](servers[0].port)) as opened:
        yield opened


def run_queues(shell, queues, handler, **options):
    """Run the loop in this thread."""
    if isinstance(shell, AsyncioShell):
        return shell.runner.run(redis_message_queue.asyncio.run_queues(queues, handler, **options))
    return redis_message_queue.run_queues(queues, handler, **options)


def fill(server, name, count):
    with server.client() as client:
        redis_message_queue.RedisMessageQueue(name, client=client).publish_many([name] * count)


@pytest.mark.promise(
    "`run_queues()` serves the other queues while the server of one is away, and serves that one again when it is back."
)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("budget", [4 * LIMIT_SECONDS, 0.2], ids=["within the budget", "beyond it"])
def test_one_server_of_several_is_away(servers, shell, concurrency, budget):
    """Its acks, too: one of its messages is in hand when it goes away."""
    server, other_server = servers
    stop, held, release = threading.Event(), threading.Event(), threading.Event()
    interrupt = redis_message_queue.EventDrivenInterruptHandler(stop)
    away = shell.queue_class(
        "away",
        gateway=shell.gateway_class(redis_client=shell.client(), **LONG_BUDGET | {"retry_budget_seconds": budget}),
        interrupt=interrupt,
    )
    served = shell.queue_class(
        "served",
        gateway=shell.gateway_class(redis_client=shell.client(port=other_server.port), **LONG_BUDGET),
        interrupt=interrupt,
    )
    handled = []

    def handle(message):
        if message.queue == "away" and not held.is_set():
            held.set()
            release.wait(LIMIT_SECONDS)
        handled.append(message.queue)

    fill(server, "away", 1)
    running = start(partial(run_queues, shell, {away: 1, served: 1}, handle, concurrency=concurrency))
    try:
        assert held.wait(LIMIT_SECONDS)
        server.kill()
        fill(other_server, "served", 20)
        release.set()
        until(lambda: handled.count("served") == 20)
        time.sleep(0.4)  # beyond the short budget
        fill(other_server, "served", 20)
        until(lambda: handled.count("served") == 40)
        server.restart()
        fill(server, "away", 3)
        until(lambda: handled.count("away") >= 4)
    finally:
        stop.set()
        release.set()
    summaries = running.result(LIMIT_SECONDS)
    assert summaries[1].handled == 40
    assert summaries[0].attempts == handled.count("away")
    assert summaries[0].handled + summaries[0].unsettled == summaries[0].attempts


def test_all_servers_away_end_the_loop_with_an_error(servers, shell):
    server, other_server = servers
    gateways = [
        shell.gateway_class(redis_client=shell.client(port=one.port), **LONG_BUDGET | {"retry_budget_seconds": 0.3})
        for one in (server, other_server)
    ]
    queues = {shell.queue_class(f"q{place}", gateway=gateway): 1 for place, gateway in enumerate(gateways)}
    handled = threading.Event()
    fill(server, "q0", 1)
    running = start(run_queues, shell, queues, lambda message: handled.set())
    assert handled.wait(LIMIT_SECONDS)
    for one in (server, other_server):
        one.kill()
    with pytest.raises(RetryBudgetExhaustedError):
        running.result(LIMIT_SECONDS)


@pytest.mark.promise("If Redis is away while a handler works, `run()` goes on when it is back.")
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("fails", [False, True], ids=["handled", "failed"])
def test_a_server_goes_away_and_comes_back_while_a_handler_works(servers, shell, concurrency, fails, caplog):
    """Its settlement is delivered then."""
    server = servers[0]
    stop, held, release = threading.Event(), threading.Event(), threading.Event()
    queue = shell.queue_class(
        "faults",
        gateway=shell.gateway_class(redis_client=shell.client(), **LONG_BUDGET),
        interrupt=redis_message_queue.EventDrivenInterruptHandler(stop),
    )
    handled = []

    def handle(message):
        if not held.is_set():
            held.set()
            release.wait(LIMIT_SECONDS)
            handled.append(message.id)
            if fails:
                raise ValueError("no such customer")
        else:
            handled.append(message.id)

    def run():
        work = queue.run(handle, concurrency=concurrency)
        return shell.runner.run(work) if isinstance(shell, AsyncioShell) else work

    fill(server, "faults", 1)
    running = start(run)
    try:
        assert held.wait(LIMIT_SECONDS)
        server.kill()
        release.set()
        until(lambda: caplog.text.count("retr") > 3)  # of an ack, or of a claim that takes it along
        server.restart()
        fill(server, "faults", 5)
        until(lambda: len(handled) >= 6)
    finally:
        stop.set()
        release.set()
    summary = running.result(LIMIT_SECONDS)
    assert summary.unsettled == 0
    assert summary.attempts == len(handled)


@pytest.mark.promise("If Redis refuses an ack, `run()` raises `CleanupFailedError` and nothing is lost.")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_ack_that_is_refused_when_the_server_is_back_ends_the_loop(servers, shell, concurrency, caplog):
    """It was retried beside the loop until then: a loop that stops has no claim that takes it along."""
    server = servers[0]
    gateway = shell.gateway_class(redis_client=shell.client(), **LONG_BUDGET)
    stop = threading.Event()
    interrupt = redis_message_queue.EventDrivenInterruptHandler(stop)
    queue = shell.queue_class("faults", gateway=gateway, interrupt=interrupt, enable_completed_queue=True)

    def handle(message):
        with server.client() as client:
            client.set("faults::completed", "not a list")
        server.kill()
        stop.set()

    def run():
        work = queue.run(handle, concurrency=concurrency)
        return shell.runner.run(work) if isinstance(shell, AsyncioShell) else work

    fill(server, "faults", 1)
    running = start(run)
    until(lambda: "settlements are retried beside the loop" in caplog.text)
    server.restart()
    with pytest.raises(CleanupFailedError):
        running.result(LIMIT_SECONDS)
    with server.client() as client:
        assert client.hlen("faults::processing") == 1
