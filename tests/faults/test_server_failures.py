"""A server that restarts, crashes, freezes or forgets its scripts neither loses nor doubles a message."""

import contextlib
import threading
import time

import pytest
import redis

from redis_message_queue.keys import QueueKeys
from tests.faults.conftest import Truth
from tests.faults.meanwhile import PATIENCE_SECONDS, start, until
from tests.faults.shells import WAYS

MOST_MESSAGES = 5000
# Patience for a server that is away for seconds, and short pauses so that the test does not wait for them.
PATIENT = {"retry_budget_seconds": 60, "retry_max_delay_seconds": 0.1, "message_wait_interval_seconds": 0.2}


@pytest.fixture
def durable(start_server):
    """A server that has written down what it has answered."""
    return start_server(append_only=True, config={"appendfsync": "always"})


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


# For what the way of sending makes no difference to.
either_colour = pytest.mark.parametrize("way", ["sync-packed", "asyncio-ordinary"], indirect=True)


class Traffic:
    """A producer and a consumer in threads of their own, each with a client of its own, around the faults."""

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
        self._producer.result(PATIENCE_SECONDS)
        self._consumer.result(PATIENCE_SECONDS)

    def flow(self):
        """Wait until messages get through."""
        wanted = len(self.handled) + 20
        until(lambda: len(self.handled) >= wanted or self._producer.done() or self._consumer.done())

    @contextlib.contextmanager
    def _queue(self):
        shell = self._way(self.server.port)
        with contextlib.closing(shell):
            client = shell.client(socket_timeout=self._socket_timeout)
            yield shell, shell.queue(client, PATIENT, enable_completed_queue=True, max_completed_length=None)

    def _produce(self):
        with self._queue() as (shell, queue):
            while not self._is_enough.is_set() and len(self.published) < MOST_MESSAGES:
                message = f"message {len(self.published)}"
                assert shell.publish(queue, message) is True
                self.published.append(message.encode())
                time.sleep(0.001)

    def _consume(self):
        with self._queue() as (shell, queue):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                if shell.process(queue, self.handled.append) is None and self._producer.done():
                    return

    def check(self):
        """Each message was published once, handled once and acked once."""
        assert self.handled == self.published
        with self.server.client() as client:
            truth = Truth(client, QueueKeys.of("faults"))
            assert truth.completed == self.published
            assert truth.is_empty


def test_a_restart_and_a_crash_in_the_middle_of_everything_are_survived(durable, way):
    """Whatever was answered is in the append-only file, and what was not is sent again."""
    traffic = Traffic(durable, way)
    with traffic:
        durable.restart()
        traffic.flow()
        durable.kill()
        time.sleep(0.1)  # for a while there is nobody to connect to
        durable.restart()
        traffic.flow()
    traffic.check()


def test_a_frozen_server_that_thaws_executes_old_requests_to_no_effect(start_server, way):
    """Frozen for longer than its clients listen: each sends its request again and again, and all of them arrive."""
    server = start_server()
    traffic = Traffic(server, way, socket_timeout=0.15)
    with traffic:
        server.pause()
        time.sleep(0.7)
        server.resume()
        traffic.flow()
    traffic.check()


def test_a_server_that_forgets_its_scripts_is_told_again(start_server, way):
    """SCRIPT FLUSH, again and again in the middle of everything: nobody notices."""
    server = start_server()
    traffic = Traffic(server, way)
    with traffic, server.client() as client:
        for _ in range(50):
            client.script_flush()
            time.sleep(0.002)
        traffic.flow()
    traffic.check()


@either_colour
def test_what_was_acknowledged_before_a_crash_is_there_after_it(durable, way):
    """Also the memory of the last answers: a call repeated across the crash gives the answer from before."""
    shell = way(durable.port)
    with contextlib.closing(shell):
        queue = shell.queue(shell.client(), PATIENT, deduplication=True)
        assert shell.publish(queue, "kept") is True
        durable.kill()
        repeated = start(shell.publish, queue, "kept")
        time.sleep(0.1)
        durable.restart()
        assert repeated.result(PATIENCE_SECONDS) is False
        assert shell.process(queue) == b"kept"
        assert shell.process(queue) is None


@either_colour
def test_a_server_that_stays_away_is_reported_in_time(start_server, way):
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
        assert 0.5 < time.monotonic() - began < PATIENCE_SECONDS
        server.restart()
        assert shell.publish(queue, "message") is True
        assert shell.process(queue) == b"message"
