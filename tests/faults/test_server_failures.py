"""A server that restarts, crashes, freezes or loses its scripts neither loses nor duplicates a message."""

import contextlib
import threading
import time

import pytest
import redis

from redis_message_queue.stored.keys import QueueKeys
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.conftest import Truth
from tests.faults.shells import WAYS

pytestmark = pytest.mark.topic("Retries of Redis calls")


MOST_MESSAGES = 5000
# A budget for a server that is down for seconds, and short pauses so that the test is fast.
LONG_BUDGET = {"retry_budget_seconds": 60, "retry_max_delay_seconds": 0.1, "message_wait_interval_seconds": 0.2}


@pytest.fixture
def durable(start_server):
    """A server that syncs to disk before each reply."""
    return start_server(append_only=True, config={"appendfsync": "always"})


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


# Where the way of sending makes no difference.
sync_or_async = pytest.mark.parametrize("way", ["sync-packed", "asyncio-ordinary"], indirect=True)


class Traffic:
    """A producer and a consumer in their own threads, each with its own client, during the faults."""

    def __init__(self, server, way, socket_timeout=2.0):
        self.server = server
        self.published, self.handled = [], []
        self._way = way
        self._socket_timeout = socket_timeout
        self._is_enough = threading.Event()

    def __enter__(self):
        self._producer = start(self._produce)
        self._consumer = start(self._consume)
        self.flow()
        return self

    def __exit__(self, *_):
        self._is_enough.set()
        self._producer.result(LIMIT_SECONDS)
        self._consumer.result(LIMIT_SECONDS)

    def flow(self):
        """Wait until messages arrive."""
        wanted = len(self.handled) + 20
        until(lambda: len(self.handled) >= wanted or self._producer.done() or self._consumer.done())

    @contextlib.contextmanager
    def _queue(self):
        shell = self._way(self.server.port)
        with contextlib.closing(shell):
            client = shell.client(socket_timeout=self._socket_timeout)
            yield shell, shell.queue(client, LONG_BUDGET, enable_completed_queue=True, max_completed_length=None)

    def _produce(self):
        with self._queue() as (shell, queue):
            while not self._is_enough.is_set() and len(self.published) < MOST_MESSAGES:
                message = f"message {len(self.published)}"
                assert shell.publish(queue, message) is True
                self.published.append(message.encode())
                time.sleep(0.001)

    def _consume(self):
        with self._queue() as (shell, queue):
            deadline = time.monotonic() + LIMIT_SECONDS
            while time.monotonic() < deadline:
                if shell.process(queue, self.handled.append) is None and self._producer.done():
                    return

    def check(self):
        """Each message was published, handled and acked once."""
        assert self.handled == self.published
        with self.server.client() as client:
            truth = Truth(client, QueueKeys.of("faults"))
            assert truth.completed == self.published
            assert truth.is_empty


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
def test_a_restart_and_a_crash_under_load_lose_nothing(durable, way):
    """Every reply is in the append-only file, and what has no reply is sent again."""
    traffic = Traffic(durable, way)
    with traffic:
        durable.restart()
        traffic.flow()
        durable.kill()
        time.sleep(0.1)  # for a while no server is there
        durable.restart()
        traffic.flow()
    traffic.check()


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
def test_a_frozen_server_executes_old_requests_without_effect(start_server, way):
    """Frozen for longer than the clients' timeout: each repeats its request, and all of them arrive."""
    server = start_server()
    traffic = Traffic(server, way, socket_timeout=0.6)
    with traffic:
        server.pause()
        time.sleep(2)
        server.resume()
        traffic.flow()
    traffic.check()


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
def test_scripts_that_the_server_lost_are_loaded_again_under_load(start_server, way):
    """SCRIPT FLUSH again and again: no caller notices."""
    server = start_server()
    traffic = Traffic(server, way)
    with traffic, server.client() as client:
        for _ in range(50):
            client.script_flush()
            time.sleep(0.002)
        traffic.flow()
    traffic.check()


@sync_or_async
def test_what_was_confirmed_before_a_crash_is_there_after_it(durable, way):
    """So are the remembered replies: a call repeated after the crash gets its old reply."""
    shell = way(durable.port)
    with contextlib.closing(shell):
        queue = shell.queue(shell.client(), LONG_BUDGET, deduplication=True)
        assert shell.publish(queue, "kept") is True
        durable.kill()
        repeated = start(shell.publish, queue, "kept")
        time.sleep(0.1)
        durable.restart()
        assert repeated.result(LIMIT_SECONDS) is False
        assert shell.process(queue) == b"kept"
        assert shell.process(queue) is None


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
@sync_or_async
def test_a_server_that_stays_down_is_reported_in_time(start_server, way):
    """The budget ends, with the cause, and the client works again when the server is back."""
    server = start_server()
    shell = way(server.port)
    with contextlib.closing(shell):
        queue = shell.queue(shell.client(), {"retry_budget_seconds": 0.3})
        shell.publish(queue, "lost with the server, which keeps nothing")
        server.kill()
        began = time.monotonic()
        for work in (lambda: shell.publish(queue, "message"), lambda: shell.process(queue)):
            with pytest.raises(redis.RedisError) as raised:
                work()
            assert isinstance(raised.value.__cause__, redis.ConnectionError)
        assert 0.5 < time.monotonic() - began < LIMIT_SECONDS
        server.restart()
        assert shell.publish(queue, "message") is True
        assert shell.process(queue) == b"message"
