"""A publish that returned is as safe as it was asked to be, and one that was not confirmed is repeated undoubled."""

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Iterator
from queue import Queue
from typing import Any, Self

import pytest
import redis
import redis.asyncio

from redis_message_queue import (
    ConfigurationError,
    EventOperation,
    EventOutcome,
    GatewayContractError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
    RetryBudgetExhaustedError,
    scripts,
)
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.envelope import ID_BYTES, Envelope
from redis_message_queue.keys import QueueKeys
from tests.contract.shells import Sent
from tests.faults.meanwhile import PATIENCE_SECONDS, beside, start, until
from tests.faults.proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, FaultyProxy, delayed
from tests.faults.shells import AsyncioShell, BlockingShell, OrdinaryAsyncioRedis, OrdinaryRedis
from tests.faults.stepping import CONNECTIONS_OF_REDIS_PY, Cancellation, CtrlC
from tests.topologies.cluster import Cluster, Node

KEY = QueueKeys.of("faults")
HEAD_BYTES = 1 + ID_BYTES + 8  # flags, id and time stand before the payload
# A server looks ten times a second for those who have waited long enough, unless it is told to look more often.
CONFIG = {"hz": 100, "repl-diskless-sync-delay": 0, "appendfsync": "always"}
# A confirmation that does not come is soon given up; one that comes has all the time of a busy machine.
HASTY = {"confirm_replicas": 1, "confirm_timeout_seconds": 0.05}
PATIENT = {"confirm_replicas": 1, "confirm_timeout_seconds": PATIENCE_SECONDS}
ON_DISK = {"confirm_fsync": True, "confirm_timeout_seconds": PATIENCE_SECONDS}
SOON_ON_DISK = {"confirm_fsync": True, "confirm_timeout_seconds": 0.05}


# The servers


class Family:
    """A primary and two replicas. The primary and the first replica write to their disks, the second does not."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            self._open = opening
            self.primary, self.careful, self.careless = (
                self._start(append_only) for append_only in (True, True, False)
            )
            self.redis = self._open.enter_context(self.primary.client())
            for name in scripts.all_names():  # so that a test can count on one request for each call
                self.redis.script_load(scripts.script(name).source)
            for replica in self.replicas:
                follow(replica, self.primary)
            self.clean()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def replicas(self) -> tuple[EmbeddedRedis, EmbeddedRedis]:
        return self.careful, self.careless

    def clean(self) -> None:
        """Empty all three, and wait until they are."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.flushall().execute_command("WAIT", 2, int(PATIENCE_SECONDS * 1000))
            assert pipe.execute()[-1] == 2

    @contextlib.contextmanager
    def stopped(self, *replicas: EmbeddedRedis) -> Iterator[None]:
        """Replicas, if not all of them, hear nothing; afterwards they go on where they were."""
        with contextlib.ExitStack() as stopping:
            for replica in replicas or self.replicas:
                stopping.callback(replica.resume)
                replica.pause()
            yield

    def blocked(self) -> int:
        """How many connections lie in a WAIT, a WAITAOF or a blocking read."""
        return int(self.redis.info("clients")["blocked_clients"])

    def asked(self) -> int:
        """How often replicas were waited for."""
        return int(self.redis.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])

    def replies(self) -> list[bytes]:
        return list(self.redis.keys("*reply*"))

    @contextlib.contextmanager
    def configured(self, server: EmbeddedRedis, **settings: Any) -> Iterator[None]:
        """Other settings for a while."""
        wanted = {name.replace("_", "-"): value for name, value in settings.items()}
        with server.client(decode_responses=True) as client:
            before = {name: client.config_get(name)[name] for name in wanted}
            try:
                for name, value in wanted.items():
                    client.config_set(name, value)
                yield
            finally:
                for name, value in before.items():
                    client.config_set(name, value)

    def _start(self, append_only: bool) -> EmbeddedRedis:
        options = {"binary": self._binary, "append_only": append_only, "config": CONFIG, "password": False}
        return self._open.enter_context(EmbeddedRedis(**options))


def follow(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """Become its replica; the copy takes a moment."""
    with replica.client() as client:
        client.execute_command("REPLICAOF", primary.host, primary.port)


def knows_waitaof(client: redis.Redis) -> bool:
    """Whether the server can tell of disks at all."""
    try:
        client.execute_command("WAITAOF", 0, 0, 1)
    except redis.ResponseError:
        return False
    return True


def stored(server: EmbeddedRedis) -> list[bytes]:
    """What waits in the queue "faults", as it lies there, the oldest first."""
    with server.client() as client:
        return list(client.lrange(KEY.pending, 0, -1))[::-1]


def payloads(server: EmbeddedRedis) -> list[bytes]:
    return [each[HEAD_BYTES:] for each in stored(server)]


@pytest.fixture(scope="module")
def running_family(server_setting: str) -> Iterator[Family]:
    """Shared, because a first copy takes a second; a test that kills somebody starts its own servers."""
    with Family(server_setting) as started:
        yield started


@pytest.fixture
def family(running_family: Family) -> Family:
    """Empty, in step, and nobody waits for anything."""
    running_family.clean()
    until(lambda: running_family.blocked() == 0)
    return running_family


@pytest.fixture
def proxy(family: Family) -> Iterator[FaultyProxy]:
    """What stands between the queue under test and the primary."""
    with FaultyProxy(family.primary.port) as opened:
        yield opened


# The shells


class Loop:
    """Runs coroutines as asyncio.Runner does, and takes them from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop-of-the-test", daemon=True)
        self._thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    async def _cancel_the_rest(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=1)  # redis-py closes some of its connections beside everything else
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class LoopShell(AsyncioShell):
    """The queue for tasks; a thread beside the test can use it too."""

    def __init__(self, port: int, client_class: Any) -> None:
        super().__init__(port, client_class)
        self.runner = Loop()


WAYS = {
    "sync-packed": lambda port: BlockingShell(port, redis.Redis),
    "sync-ordinary": lambda port: BlockingShell(port, OrdinaryRedis),
    "asyncio-packed": lambda port: LoopShell(port, redis.asyncio.Redis),
    "asyncio-ordinary": lambda port: LoopShell(port, OrdinaryAsyncioRedis),
}
COLOURS = ("sync-packed", "asyncio-packed")
every_way = pytest.mark.parametrize("shell", WAYS, indirect=True)
one_colour = pytest.mark.parametrize("shell", ["asyncio-packed"], indirect=True)  # where a test takes seconds


@pytest.fixture(params=COLOURS)
def shell(request: pytest.FixtureRequest, proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """Both colours; what asks is sent in one way only, and with `every_way` what publishes in both."""
    opened = WAYS[request.param](proxy.port)
    yield opened
    opened.close()


@pytest.fixture
def blocking(proxy: FaultyProxy) -> Iterator[BlockingShell]:
    """For what only threads can do."""
    opened = BlockingShell(proxy.port, redis.Redis)
    yield opened
    opened.close()


def done(shell: BlockingShell, answer: Any) -> Any:
    """What came of a call, in either colour."""
    return shell.runner.run(answer) if isinstance(shell, AsyncioShell) else answer


def publish(shell: BlockingShell, queue: Any, message: Any = "message", repeat_of: Any = None) -> bool:
    return done(shell, queue.publish(message, repeat_of=repeat_of))


def drain(shell: BlockingShell, queue: Any, timeout: float | None = None) -> bool:
    return done(shell, queue.drain(timeout))


def unconfirmed(
    shell: BlockingShell, queue: Any, message: Any = "message", repeat_of: Any = None
) -> PublishNotConfirmedError:
    with pytest.raises(PublishNotConfirmedError) as raised:
        publish(shell, queue, message, repeat_of)
    return raised.value


def repeat(shell: BlockingShell, queue: Any, error: PublishNotConfirmedError | None, message: Any = "message") -> bool:
    """Until it is confirmed: a replica that has just woken up may need longer than a hasty queue waits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return publish(shell, queue, message, error)
        except PublishNotConfirmedError as again:
            assert time.monotonic() < deadline, "nobody confirms"
            error = again


def lacking(shell: BlockingShell, queue: Any, what: str, message: Any = "message") -> PublishNotConfirmedError:
    """An error that says what is missing; on a busy machine even those that do have it need their time."""
    error = unconfirmed(shell, queue, message)
    deadline = time.monotonic() + PATIENCE_SECONDS / 3
    while what not in str(error):
        assert time.monotonic() < deadline, error
        error = unconfirmed(shell, queue, message, error)
    return error


def hold_idle_connection(shell: BlockingShell, client: Any) -> Any:
    """Take the connection out of the pool that the next caller would have got."""
    return done(shell, client.connection_pool.get_connection())


def give_connection_back(shell: BlockingShell, client: Any, connection: Any) -> None:
    done(shell, client.connection_pool.release(connection))


def check_answers(shell: BlockingShell, client: Any, count: int = 5) -> None:
    """The user's next commands get their own answers."""
    for number in range(count):
        asked = f"question {number}"
        assert shell.command(client, "ECHO", asked) == asked.encode()


# Confirmed


@every_way
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decodes", [False, True], ids=["bytes", "text"])
def test_a_confirmed_message_is_on_the_replicas(family, shell, protocol, decodes):
    """When publish() returns, and not a moment later; with every kind of client."""
    client = shell.client(protocol=protocol, decode_responses=decodes)
    queue = shell.queue(client, gateway=PATIENT | {"confirm_replicas": 2})
    assert queue._protocol.port._packs_by_hand is shell.packs_by_hand
    for number in range(1, 4):
        assert publish(shell, queue, f"message {number}") is True
        for replica in family.replicas:
            assert payloads(replica)[number - 1 :] == [b"message %d" % number]
    assert shell.process(queue) == ("message 1" if decodes else b"message 1")


@every_way
def test_a_publish_waits_for_a_replica_that_lags(family, shell):
    """The primary has the message already; the caller hears of it when a replica has it too."""
    queue = shell.queue(gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: family.blocked() == 1)
        assert payloads(family.primary) == [b"message"]
        assert not publishing.done()
    assert publishing.result(PATIENCE_SECONDS) is True
    assert b"message" in payloads(family.careful) + payloads(family.careless)
    assert payloads(family.primary) == [b"message"]


@every_way
def test_as_many_replicas_as_were_asked_for_are_enough(family, shell):
    """One of two may be gone for one, and is missed for two."""
    one = shell.queue(gateway=PATIENT)
    both = shell.queue(gateway=HASTY | {"confirm_replicas": 2})
    with family.stopped(family.careless):
        assert publish(shell, one, "for one") is True
        assert payloads(family.careful) == [b"for one"]
        error = lacking(shell, both, "1 of 2 replicas have it", "for both")
    assert repeat(shell, both, error, "for both") is True
    assert payloads(family.careless) == [b"for one", b"for both"]


def test_a_queue_that_wants_no_confirmation_waits_for_nobody(family, shell):
    queue = shell.queue()
    asked = family.asked()
    with family.stopped():
        assert publish(shell, queue) is True
    assert family.asked() == asked


@every_way
def test_one_connection_is_enough(family, shell):
    """What asks takes the connection that has published, and gives it back."""
    queue = shell.queue(shell.client(max_connections=1), gateway=PATIENT)
    for _ in range(3):
        assert publish(shell, queue) is True


# Not confirmed, and repeated


@every_way
def test_a_publish_that_no_replica_has_is_an_error_and_can_be_repeated(family, shell):
    """It is on the primary once, before and after; the error says what was missing and which message it was."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
        again = unconfirmed(shell, queue, repeat_of=error)
        [lying] = stored(family.primary)
    assert "0 of 1 replicas have it" in str(error)
    assert (error.queue, error.operation) == ("faults", "publish")
    assert error.message_id == again.message_id == lying[1 : 1 + ID_BYTES].hex()
    assert repeat(shell, queue, again) is True
    assert stored(family.primary) == [lying]
    assert [lying] in (stored(family.careful), stored(family.careless))
    assert shell.process(queue) == b"message"
    assert shell.process(queue) is None


def test_a_message_that_was_handled_meanwhile_is_not_published_again(family, shell):
    """Not confirmed does not mean not there: consumers have it at once."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
        assert shell.process(queue) == b"message"
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == []


def test_a_repetition_has_the_headers_that_it_had(family, shell):
    """It is the same call: nobody is asked again, however the headers of this moment would differ."""
    asked: list[dict[str, str]] = []

    def get_headers() -> dict[str, str]:
        asked.append({"n": "x" * (1 + 3_000 * len(asked))})
        return asked[-1]

    queue, many = shell.queue(gateway=HASTY, get_headers=get_headers), [f"message {place}" for place in range(999)]
    with family.stopped():
        error = unconfirmed(shell, queue)
        with pytest.raises(PublishNotConfirmedError) as raised:
            done(shell, queue.publish_many(many))
    assert repeat(shell, queue, error) is True
    before = len(asked)
    error = raised.value
    left = many[len(error.results) :]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left:
        assert time.monotonic() < deadline, "nobody confirms"
        try:
            done(shell, queue.publish_many(left, repeat_of=error))
            left = []
        except PublishNotConfirmedError as again:
            left, error = left[len(again.results) :], again
    assert before == 2
    assert payloads_with_extras(family.primary) == [b"message", *(one.encode() for one in many)]


def payloads_with_extras(server: EmbeddedRedis) -> list[bytes]:
    return [Envelope(one).payload for one in stored(server)]


def test_without_repeat_of_the_message_is_another_one(family, shell):
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        unconfirmed(shell, queue)
        unconfirmed(shell, queue)
    assert payloads(family.primary) == [b"message"] * 2


@every_way
def test_a_duplicate_is_confirmed_too(family, shell):
    """Whoever hears False may rely on the first one being safe."""
    queue = shell.queue(gateway=HASTY, deduplication=True)
    patient = shell.queue(gateway=PATIENT, deduplication=True)
    with family.stopped():
        error = unconfirmed(shell, queue)
        duplicate = unconfirmed(shell, queue)
        assert duplicate.message_id != error.message_id
        assert payloads(family.primary) == [b"message"]
    assert publish(shell, patient) is False
    assert [b"message"] in (payloads(family.careful), payloads(family.careless))
    assert repeat(shell, queue, duplicate) is False
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_what_cannot_be_repeated_is_refused_and_nothing_is_written(family, shell):
    """Each refusal says which rule it is about, and no command reaches the server."""
    queue, other = shell.queue(gateway=HASTY), shell.queue(gateway=HASTY)
    with family.stopped():
        error, confirmed, old = (unconfirmed(shell, queue, text) for text in ("message", "confirmed", "old"))
    assert repeat(shell, queue, confirmed, "confirmed") is True
    old.sent.at -= queue._protocol.store.calls.keep_seconds
    refusals = [
        (queue, "another message", error, "error of another message"),
        (other, "message", error, "another queue object"),
        (queue, "message", PublishNotConfirmedError("made up"), "another queue object"),
        (queue, "confirmed", confirmed, "confirmed already"),
        (queue, "old", old, "may have forgotten"),
        (queue, "message", ValueError("no"), "must be a PublishNotConfirmedError"),
        (queue, "message", "error", "must be a PublishNotConfirmedError"),
    ]
    lying = stored(family.primary)
    with Sent(family.primary) as sent:
        for where, message, repeat_of, told in refusals:
            with pytest.raises(ConfigurationError, match=told) as raised:
                publish(shell, where, message, repeat_of)
            assert (raised.value.queue, raised.value.operation) == ("faults", "publish")
    assert sent.lines == []
    assert stored(family.primary) == lying
    assert repeat(shell, queue, error) is True
    assert stored(family.primary) == lying


def test_a_publish_that_is_repeated_again_and_again_stays_young(family, shell):
    """Every repetition is remembered anew: a replica may be away for hours, and the next one still counts once."""
    queue = shell.queue(gateway=HASTY)
    keep = queue._protocol.store.calls.keep_seconds
    later = 0.0
    queue._protocol.port.now = lambda: time.monotonic() + later
    with family.stopped():
        error = unconfirmed(shell, queue)
        [reply] = family.replies()
        for _ in range(4):
            later += keep / 3
            family.redis.pexpire(reply, int(1000 * keep * 2 / 3))
            error = unconfirmed(shell, queue, repeat_of=error)
            assert family.redis.pttl(reply) > 1000 * keep * 0.9
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


# Confirmed by mistake


@every_way
def test_a_publish_whose_reply_was_lost_is_not_confirmed_by_mistake(family, shell, proxy):
    """The connection that wrote it is gone, and the one that asks has something to wait for all the same."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        proxy.meet("publish", CUT_AFTER)
        error = unconfirmed(shell, queue)
        assert proxy.seen["publish"] >= 3
        assert payloads(family.primary) == [b"message"]
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


@every_way
def test_another_connection_does_not_confirm_by_mistake(family, shell):
    """The pool gives out one that has written nothing; a repetition waits for the message, not for that connection."""
    client = shell.client()
    queue = shell.queue(client, gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
        published_by = hold_idle_connection(shell, client)
        try:
            error = unconfirmed(shell, queue, repeat_of=error)
        finally:
            give_connection_back(shell, client, published_by)
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_a_pool_that_gives_out_its_connections_in_turn_does_not_confirm_by_mistake(family, blocking):
    """What was published, and what is asked about it, must not depend on who used a connection before."""
    fifo = redis.BlockingConnectionPool(
        host="127.0.0.1", port=family.primary.port, max_connections=3, timeout=1, queue_class=Queue
    )
    queue = blocking.queue(blocking.client(connection_pool=fifo), gateway=HASTY)
    with family.stopped():
        error = unconfirmed(blocking, queue)
    assert repeat(blocking, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_a_server_without_memory_confirms_what_it_has(family, shell):
    """A repetition writes what a full server does not refuse."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
    with family.configured(family.primary, maxmemory=1):
        with pytest.raises(redis.ResponseError, match="memory"):
            publish(shell, queue, "one more")
        assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


# A lost primary


class Switch(FaultyProxy):
    """An address that can lead to another server, as a failover makes it."""

    def lead_to(self, server: EmbeddedRedis) -> None:
        self._server = (server.host, server.port)
        self.cut_all()


@pytest.fixture
def pair(start_server) -> tuple[EmbeddedRedis, EmbeddedRedis]:
    """A primary that a test may kill, and a replica in step with it."""
    primary, replica = (start_server(config=CONFIG) for _ in range(2))
    follow(replica, primary)
    with primary.client() as client, client.pipeline(transaction=False) as pipe:
        pipe.set("a write", "to wait for").execute_command("WAIT", 1, int(PATIENCE_SECONDS * 1000))
        assert pipe.execute()[-1] == 1
    return primary, replica


@pytest.mark.parametrize("had_heard", [True, False], ids=["that had heard of it", "that had not"])
def test_a_repetition_after_a_failover_counts_once_on_the_promoted_replica(pair, start_server, had_heard):
    """One that had the messages confirms them, and one that never heard of them publishes them now."""
    primary, replica = pair
    with contextlib.ExitStack() as opened:
        switch = opened.enter_context(Switch(primary.port))
        other = opened.enter_context(replica.client())
        shells = {way.encode(): opened.enter_context(contextlib.closing(WAYS[way](switch.port))) for way in COLOURS}
        queues = {way: shell.queue(gateway=HASTY) for way, shell in shells.items()}
        for way, queue in queues.items():
            assert repeat(shells[way], queue, None, "before") is True
        if had_heard:
            replica.pause()
        else:
            other.execute_command("REPLICAOF", "NO", "ONE")
        try:
            errors = {way: unconfirmed(shells[way], queue, way.decode()) for way, queue in queues.items()}
            lying = stored(primary)
            primary.kill()
            for way, queue in queues.items():  # as long as nobody is there, nothing more can be said
                error = unconfirmed(shells[way], queue, way.decode(), errors[way])
                assert isinstance(error.__cause__, RetryBudgetExhaustedError)
        finally:
            replica.resume()
        if had_heard:
            until(lambda: stored(replica) == lying)
            other.execute_command("REPLICAOF", "NO", "ONE")
        assert payloads(replica) == [b"before"] * 2 + (list(shells) if had_heard else [])
        switch.lead_to(replica)
        for way, queue in queues.items():
            # It is there now, and waits for a replica that the new primary does not have yet.
            errors[way] = unconfirmed(shells[way], queue, way.decode(), errors[way])
            assert "0 of 1 replicas have it" in str(errors[way])
        assert payloads(replica) == [b"before", b"before", *shells]
        newcomer = start_server(config=CONFIG)
        follow(newcomer, replica)
        for way, queue in queues.items():
            assert repeat(shells[way], queue, errors[way], way.decode()) is True
        assert payloads(newcomer) == payloads(replica) == [b"before", b"before", *shells]


# On disk


def is_beyond(server: EmbeddedRedis, shell: BlockingShell, queue: Any) -> bool:
    """Whether this server cannot tell of disks at all; then the queue has said so, and nothing was written."""
    with server.client() as client:
        if knows_waitaof(client):
            return False
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="confirm_fsync needs a server with WAITAOF") as raised:
                publish(shell, queue)
            assert isinstance(raised.value.__cause__, redis.ResponseError)
            assert (raised.value.queue, raised.value.operation) == ("faults", "publish")
        assert client.keys("*") == []
    return True


@every_way
def test_a_message_is_confirmed_when_it_is_on_the_disk(family, shell):
    """The server is told not to write through, and the publish is not confirmed until it does."""
    queue = shell.queue(gateway=SOON_ON_DISK)
    if is_beyond(family.primary, shell, queue):
        return
    with family.configured(family.primary, appendfsync="no"):
        error = unconfirmed(shell, queue)
        assert "fsync not done" in str(error)
        assert payloads(family.primary) == [b"message"]
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_a_publish_waits_for_the_disk(family, shell, appendfsync):
    """Whether every write goes through to it, or all of a second together."""
    queue = shell.queue(gateway=ON_DISK)
    with family.configured(family.primary, appendfsync=appendfsync):
        if is_beyond(family.primary, shell, queue):
            return
        assert [publish(shell, queue) for _ in range(3)] == [True] * 3
    assert payloads(family.primary) == [b"message"] * 3


def test_a_message_on_the_disk_survives_a_crash(start_server, tmp_path, shell):
    """And so does the answer to its call: a repetition after the crash counts once."""
    server = start_server(directory=tmp_path, append_only=True, config=CONFIG)
    client = shell.client(port=server.port)
    queue = shell.queue(client, gateway=ON_DISK)
    if is_beyond(server, shell, queue):
        return
    assert publish(shell, queue, "first") is True
    server.kill()
    server.restart()
    assert payloads(server) == [b"first"]
    hasty = shell.queue(client, gateway=SOON_ON_DISK)
    with server.client() as other:
        other.config_set("appendfsync", "no")
    error = unconfirmed(shell, hasty, "second")
    server.kill()
    server.restart()
    assert repeat(shell, hasty, error, "second") is True
    assert payloads(server) == [b"first", b"second"]


@one_colour
def test_replicas_must_have_it_on_their_disks_too(family, shell):
    """The one that keeps no file has the message, and does not count until it keeps one."""
    on_one = shell.queue(gateway=ON_DISK | {"confirm_replicas": 1})
    if is_beyond(family.primary, shell, on_one):
        return
    assert publish(shell, on_one, "on one") is True
    assert payloads(family.careful) == [b"on one"]
    # A replica tells of its disk once a second.
    on_both = shell.queue(gateway=ON_DISK | {"confirm_replicas": 2, "confirm_timeout_seconds": 1.2})
    error = lacking(shell, on_both, "fsync done, 1 of 2 replicas have it on disk")
    until(lambda: payloads(family.careless) == [b"on one", b"message"])
    with family.configured(family.careless, appendonly="yes"):
        assert repeat(shell, on_both, error) is True
    assert payloads(family.primary) == [b"on one", b"message"]


def test_a_server_without_a_file_is_found_out_before_anything_is_written(server, clean_server, shell):
    """Every time: somebody may switch it on meanwhile, and then it works."""
    queue = shell.queue(shell.client(port=server.port), gateway=ON_DISK)
    with server.client() as client:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="appendonly") as raised:
                publish(shell, queue)
            assert (raised.value.queue, raised.value.operation) == ("faults", "publish")
        assert client.keys("*") == []
        if knows_waitaof(client):
            client.config_set("appendonly", "yes")
            try:
                assert publish(shell, queue) is True
            finally:
                client.config_set("appendonly", "no")


@pytest.mark.parametrize("stale", ["no", "yes"], ids=["that says nothing", "that answers"])
def test_a_replica_that_is_about_to_be_promoted_is_not_called_misconfigured(shell, start_server, stale):
    """It cannot tell of disks now; a moment later it can, and a publish waits for that as it does for READONLY."""
    server = start_server(append_only=True, config=CONFIG | {"replica-serve-stale-data": stale})
    with server.client() as client, FaultyProxy(server.port) as watching:
        queue = shell.queue(shell.client(port=watching.port), gateway=ON_DISK)
        if is_beyond(server, shell, queue):
            return
        client.execute_command("REPLICAOF", server.host, 1)  # where nobody is
        publishing = start(publish, shell, queue)
        try:
            until(lambda: watching.seen["WAITAOF"] >= 2 or publishing.done())
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert publishing.result(PATIENCE_SECONDS) is True
    assert payloads(server) == [b"message"]


# In time


def test_a_confirmation_may_take_longer_than_the_client_listens_for_an_answer(family, shell, proxy):
    """It is asked for again and again, each time for less than that."""
    queue = shell.queue(shell.client(socket_timeout=0.25), gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: proxy.seen["WAIT"] >= 3)
        assert not publishing.done()
    assert publishing.result(PATIENCE_SECONDS) is True
    assert payloads(family.primary) == [b"message"]


def test_no_question_outlasts_the_patience_of_its_client(family, shell):
    """The last answer is what the replicas have, and not that the client has stopped listening."""
    queue = shell.queue(shell.client(socket_timeout=0.25), gateway=HASTY | {"confirm_timeout_seconds": 0.4})
    with family.stopped():
        error = lacking(shell, queue, "0 of 1 replicas have it")
    assert error.__cause__ is None
    assert payloads(family.primary) == [b"message"]


@every_way
@pytest.mark.parametrize("fault", [CUT_BEFORE, CUT_AFTER, BLACK_HOLE], ids=str)
def test_a_connection_that_breaks_while_it_asks_is_not_noticed(family, shell, proxy, fault):
    """Or answers nothing; the time of the confirmation is not over, and the question is sent again."""
    queue = shell.queue(shell.client(socket_timeout=0.2), gateway=PATIENT)
    proxy.meet("WAIT", fault, fault)
    assert publish(shell, queue) is True
    assert proxy.seen["WAIT"] >= 3
    assert payloads(family.primary) == [b"message"]


@every_way
@pytest.mark.parametrize("fault", [CUT_BEFORE, CUT_AFTER, BLACK_HOLE], ids=str)
def test_connections_that_keep_breaking_use_up_the_time(family, shell, proxy, fault):
    """The retry budget is far longer than the moment that the confirmation has."""
    queue = shell.queue(shell.client(socket_timeout=0.05), gateway=HASTY | {"retry_budget_seconds": 900})
    proxy.always("WAIT", fault)
    started = time.monotonic()
    error = unconfirmed(shell, queue)
    assert time.monotonic() - started < PATIENCE_SECONDS
    assert isinstance(error.__cause__, RetryBudgetExhaustedError)
    proxy.relent()
    assert repeat(shell, queue, error) is True
    assert payloads(family.primary) == [b"message"]


def test_a_server_that_takes_no_writes_just_now_is_asked_again(family, shell, proxy):
    """NOREPLICAS is an answer; as with a broken connection, the time of the confirmation is not over."""
    queue = shell.queue(shell.client(socket_timeout=0.25), gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: family.blocked() == 1)
        asked = proxy.seen["WAIT"]
        with family.configured(family.primary, min_replicas_to_write=3):
            proxy.cut_all()  # the question is asked anew, and refused
            until(lambda: proxy.seen["WAIT"] >= asked + 3 or publishing.done())
    assert publishing.result(PATIENCE_SECONDS) is True
    assert payloads(family.primary) == [b"message"]


def test_a_user_who_may_not_wait_hears_why(family, shell):
    """The cause is the server's own word; what was published can be repeated when the rule has changed."""
    family.redis.execute_command("ACL", "SETUSER", "hurried", "on", ">pw", "~*", "&*", "+@all", "-wait")
    try:
        queue = shell.queue(shell.client(username="hurried", password="pw"), gateway=PATIENT)
        error = unconfirmed(shell, queue)
        assert isinstance(error.__cause__, redis.exceptions.NoPermissionError)
        family.redis.execute_command("ACL", "SETUSER", "hurried", "+wait")
        assert repeat(shell, queue, error) is True
        assert payloads(family.primary) == [b"message"]
    finally:
        family.redis.execute_command("ACL", "DELUSER", "hurried")


# Broken off


@pytest.mark.parametrize("client_class", [redis.Redis, OrdinaryRedis], ids=["packed", "ordinary"])
def test_ctrl_c_while_replicas_are_waited_for_leaves_no_answer_behind(family, blocking, client_class):
    """A real SIGINT; the connection whose answer is still to come is not used again, and none is lost."""
    blocking.client_class = client_class
    client = blocking.client(max_connections=1)
    queue = blocking.queue(client, gateway=PATIENT)

    def interrupt(returned):
        until(lambda: family.blocked() == 1 or returned.is_set())
        if not returned.is_set():  # a publish that has not waited must not end the whole run
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with family.stopped():
        for number in range(1, 4):
            returned = threading.Event()
            with beside(interrupt, returned), pytest.raises(KeyboardInterrupt):
                queue.publish(f"message {number}")
                returned.set()
            check_answers(blocking, client)
            until(lambda: family.blocked() == 0)
            assert len(payloads(family.primary)) == number
    assert queue.publish("message 4") is True
    check_answers(blocking, client)
    assert payloads(family.primary) == [b"message %d" % number for number in range(1, 5)]
    assert queue.drain(PATIENCE_SECONDS) is True


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("protocol", [2, 3])
def test_ctrl_c_at_every_moment_of_a_confirmed_publish_leaves_no_answer_behind(family, blocking, protocol):
    client = blocking.client(port=family.primary.port, protocol=protocol)
    queue = blocking.queue(client, gateway=PATIENT)
    assert queue.publish("warm") is True
    moment, came = protocol, True
    while came:
        with CtrlC(moment) as interruption:
            queue.publish("message")
        came = interruption.came
        check_answers(blocking, client, 2)
        moment += 4  # of some 650: those that spoil a connection come in rows of four and more
    assert moment > 200
    assert 1 <= len(stored(family.primary)) <= moment / 4 + 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # redis-py's, of a socket that was hardly open
def test_ctrl_c_while_connecting_to_ask_leaves_no_half_made_connection_behind(family, blocking):
    """redis-py puts a connection back whose handshake was interrupted, with answers unread: ours must not stay."""
    client = blocking.client(port=family.primary.port)
    queue = blocking.queue(client, gateway=HASTY)
    with family.stopped():
        error = unconfirmed(blocking, queue)
        moment, came = 1, True
        while came:
            client.connection_pool.disconnect()
            with CtrlC(moment, CONNECTIONS_OF_REDIS_PY) as interruption:
                error = unconfirmed(blocking, queue, repeat_of=error)
            came = interruption.came
            check_answers(blocking, client, 3)
            moment += 4  # of some 400: those that spoil a connection come in rows of four and more
    assert moment > 100
    assert repeat(blocking, queue, error) is True
    assert payloads(family.primary) == [b"message"]


@pytest.mark.parametrize("client_class", [redis.asyncio.Redis, OrdinaryAsyncioRedis], ids=["packed", "ordinary"])
def test_a_task_that_is_cancelled_while_replicas_are_waited_for_leaves_no_answer_behind(family, proxy, client_class):
    shell = LoopShell(proxy.port, client_class)
    client = shell.client(max_connections=1)
    queue = shell.queue(client, gateway=PATIENT)

    async def cancel_a_publish(message):
        task = asyncio.create_task(queue.publish(message))
        await asyncio.to_thread(until, lambda: family.blocked() == 1)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    with contextlib.closing(shell):
        with family.stopped():
            for number in range(1, 4):
                assert shell.runner.run(cancel_a_publish(f"message {number}")) is True
                check_answers(shell, client)
                until(lambda: family.blocked() == 0)
                assert len(payloads(family.primary)) == number
        assert publish(shell, queue, "message 4") is True
        check_answers(shell, client)
        assert payloads(family.primary) == [b"message %d" % number for number in range(1, 5)]
        assert drain(shell, queue, PATIENCE_SECONDS) is True


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not yet connected"])
def test_cancelling_a_repetition_at_every_await_leaves_no_answer_behind(family, proxy, connected):
    """Nor a lost connection; and the error can be repeated as if nothing had happened."""
    shell = LoopShell(proxy.port, redis.asyncio.Redis)
    pool = redis.asyncio.BlockingConnectionPool(host="127.0.0.1", port=proxy.port, max_connections=2, timeout=1)
    client = shell.client(connection_pool=pool)
    queue = shell.queue(client, gateway=HASTY)

    async def cancel_everywhere(error):
        awaits = 0
        while True:
            awaits += 1
            await pool.disconnect()
            if connected:
                await client.ping()
            cancellation = Cancellation(awaits)
            task = asyncio.ensure_future(cancellation.of(queue.publish("message", repeat_of=error)))
            await asyncio.wait({task})
            for number in range(5):
                assert await client.echo(f"question {number}") == b"question %d" % number
            taken = [await pool.get_connection(), await pool.get_connection()]
            for connection in taken:
                await pool.release(connection)
            if not cancellation.came:
                assert isinstance(task.exception(), PublishNotConfirmedError)
                return awaits - 1

    with contextlib.closing(shell):
        with family.stopped():
            error = unconfirmed(shell, queue)
            proxy.always("EVAL", delayed(0.01))  # no answer is there before it is awaited
            assert shell.runner.run(cancel_everywhere(error)) >= (1 if connected else 3)
        proxy.relent()
        assert repeat(shell, queue, error) is True
        assert payloads(family.primary) == [b"message"]


# At the limit, and at the end


def full(**policy: Any) -> dict[str, Any]:
    return {"max_pending_length": 1, **policy}


def test_a_full_queue_refuses_before_anybody_is_asked(family, shell):
    queue = shell.queue(gateway=PATIENT | full())
    impatient = {"pending_overload_policy": "block", "pending_overload_block_timeout_seconds": 0.05}
    blocking = shell.queue(gateway=PATIENT | full(**impatient))
    assert publish(shell, queue) is True
    asked = family.asked()
    for refusing in (queue, blocking):
        with pytest.raises(QueueBackpressureError):
            publish(shell, refusing, "too much")
    assert family.asked() == asked
    assert payloads(family.primary) == [b"message"]


def test_a_publish_that_waited_for_room_is_confirmed(family, shell):
    patience = {"pending_overload_policy": "block", "pending_overload_block_timeout_seconds": PATIENCE_SECONDS}
    queue = shell.queue(gateway=PATIENT | full(**patience))
    assert publish(shell, queue, "first") is True
    asked = family.asked()
    second = start(publish, shell, queue, "second")
    assert shell.process(queue) == b"first"
    assert second.result(PATIENCE_SECONDS) is True
    assert family.asked() > asked
    assert [b"second"] in (payloads(family.careful), payloads(family.careless))


def test_a_message_that_took_the_place_of_another_is_confirmed(family, shell):
    """On the replica too the oldest is gone; the event of the one that was dropped comes once."""
    events: list[Any] = []
    hasty = shell.queue(gateway=HASTY | full(pending_overload_policy="drop_oldest"), on_event=events.append)
    assert repeat(shell, hasty, None, "first") is True
    with family.stopped():
        error = unconfirmed(shell, hasty, "second")
    assert repeat(shell, hasty, error, "second") is True
    assert [b"second"] in (payloads(family.careful), payloads(family.careless))
    assert payloads(family.primary) == [b"second"]
    first = next(event.message_id for event in events)
    assert [event.message_id for event in events if event.operation == EventOperation.DROPPED] == [first]


def test_a_drain_waits_for_a_publish_that_is_being_confirmed(family, shell):
    """It is under way until a replica has it; the drain says so, and waits if it may."""
    queue = shell.queue(gateway=PATIENT)
    with family.stopped():
        publishing = start(publish, shell, queue)
        until(lambda: family.blocked() == 1)
        assert drain(shell, queue, 0.02) is False
        draining = start(drain, shell, queue)
        until(lambda: queue.is_draining)
        assert not publishing.done()
        assert not draining.done()
    assert publishing.result(PATIENCE_SECONDS) is True
    assert draining.result(PATIENCE_SECONDS) is True
    assert payloads(family.primary) == [b"message"]


def test_a_drained_queue_repeats_nothing(family, shell):
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
        assert drain(shell, queue, PATIENCE_SECONDS) is True
        with pytest.raises(QueueDrainedError):
            publish(shell, queue, repeat_of=error)
    assert payloads(family.primary) == [b"message"]


def test_events_tell_what_was_not_confirmed_and_what_was(family, shell):
    """Under one id; the failure carries the error, and a duplicate that is confirmed is told as one."""
    events: list[Any] = []
    queue = shell.queue(gateway=HASTY, on_event=events.append, deduplication=True)
    with family.stopped():
        error = unconfirmed(shell, queue)
    assert repeat(shell, queue, error) is True
    assert repeat(shell, queue, None) is False
    failed = [event for event in events if event.outcome == EventOutcome.FAILURE]
    assert failed[0].error is error
    assert {event.exception_type for event in failed} == {"PublishNotConfirmedError"}
    published, suppressed = (event for event in events if event.outcome != EventOutcome.FAILURE)
    assert (published.operation, published.outcome) == (EventOperation.PUBLISH, EventOutcome.SUCCESS)
    assert (suppressed.operation, suppressed.outcome) == (EventOperation.PUBLISH_DEDUP_HIT, EventOutcome.SKIPPED)
    assert failed[0].message_id == published.message_id == error.message_id
    assert suppressed.message_id != error.message_id


# What is left behind


def test_errors_that_are_thrown_away_leave_nothing_that_stays(family, shell):
    """One small key each, which ends by itself; the messages are as good as any."""
    queue = shell.queue(gateway=HASTY | {"confirm_timeout_seconds": 0.01})
    with family.stopped():
        for _ in range(5):
            unconfirmed(shell, queue)
    gc.collect()
    longest = 1000 * queue._protocol.store.calls.keep_seconds
    assert len(family.replies()) == 5
    assert all(0 < family.redis.pttl(key) <= longest for key in family.replies())
    assert [shell.process(queue) for _ in range(6)] == [b"message"] * 5 + [None]
    left = set(family.redis.keys("*")) - set(family.replies())
    assert left <= {KEY.bell.encode(), KEY.meta.encode()}


def test_publishes_that_are_confirmed_in_the_end_share_one_key(family, shell):
    """A slot comes back with the confirmation, and not before."""
    queue = shell.queue(gateway=HASTY)
    for number in range(4):
        with family.stopped() if number % 2 else contextlib.nullcontext():
            try:
                publish(shell, queue)
                continue
            except PublishNotConfirmedError as raised:
                error = raised
        assert repeat(shell, queue, error) is True
    assert len(family.replies()) == 1
    assert payloads(family.primary) == [b"message"] * 4


def test_other_publishes_do_not_disturb_one_that_is_to_be_repeated(family, shell):
    """It keeps its slot, so that none of them makes it a straggler, however many there are."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
    for outcome in shell.publish_together(queue, [f"other {number}" for number in range(8)]):
        assert outcome is True or isinstance(outcome, PublishNotConfirmedError)
    assert repeat(shell, queue, error) is True
    assert sorted(payloads(family.primary)) == [b"message", *(b"other %d" % number for number in range(8))]


# Behind a gateway


def test_the_operations_of_a_gateway_are_confirmed_too(family, shell):
    """Also where a subclass calls them; what it raised cannot be repeated by a queue that does not know its call."""

    class Own(shell.gateway_class):
        def add_message(self, queue, message):
            return super().add_message(queue, message)

    gateway = Own(redis_client=shell.client(), **HASTY)
    queue = shell.queue_class("faults", gateway=gateway)
    with family.stopped():
        with pytest.raises(PublishNotConfirmedError):
            done(shell, gateway.add_message(KEY.pending, "first"))
        error = unconfirmed(shell, queue, "second")
        assert (error.queue, error.operation) == ("faults", "publish")
        with pytest.raises(GatewayContractError, match="repeat_of"):
            publish(shell, queue, "second", error)
    assert payloads(family.primary) == [b"first", b"second"]


@pytest.mark.parametrize(
    "option", [{"confirm_replicas": 1}, {"confirm_fsync": True}, {"confirm_timeout_seconds": 2}], ids=str
)
def test_options_of_the_gateway_are_refused_beside_one(shell, option):
    """And taken where the queue has a bare client."""
    (name,) = option
    gateway = shell.gateway_class(redis_client=shell.client())
    with pytest.raises(ConfigurationError, match=rf"{name}.*RedisGateway\({name}="):
        shell.queue_class("faults", gateway=gateway, **option)
    shell.queue_class("faults", client=shell.client(), **option)


def test_a_queue_with_a_bare_client_is_confirmed(family, shell):
    hasty = shell.queue_class("faults", client=shell.client(), **HASTY)
    with family.stopped():
        error = unconfirmed(shell, hasty)
    assert repeat(shell, hasty, error) is True
    assert payloads(family.primary) == [b"message"]


# A cluster


@pytest.fixture(scope="module")
def cluster(server_setting: str) -> Iterator[Cluster]:
    """The first of three primaries has a replica."""
    with Cluster(server_setting, replica=True) as started:
        yield started


@pytest.fixture(params=COLOURS)
def anywhere(request: pytest.FixtureRequest) -> Iterator[BlockingShell]:
    """A shell for clients that lead elsewhere than to the proxy."""
    opened = WAYS[request.param](0)
    yield opened
    opened.close()


@contextlib.contextmanager
def on_cluster(cluster: Cluster, shell: BlockingShell, client: dict[str, Any] | None = None, **options: Any) -> Any:
    """A queue in a slot whose owner has a replica."""
    awaits = isinstance(shell, AsyncioShell)
    opened = (cluster.async_client if awaits else cluster.client)(**client or {})
    names = (f"orders {number}" for number in range(100))
    name = next(name for name in names if cluster.owner(f"{{{name}}}") is cluster.nodes[0])
    try:
        yield shell.queue_class(name, client=opened, retry_max_delay_seconds=0.05, **options)
    finally:
        done(shell, opened.aclose() if awaits else opened.close())


def lying_on(node: Node, queue: Any) -> list[bytes]:
    """What waits in the queue, as this node knows it, be it a primary or a replica."""
    with node.redis.pipeline(transaction=False) as pipe:
        listed = pipe.execute_command("READONLY").lrange(queue.key.pending, 0, -1).execute()[-1]
    return [each[HEAD_BYTES:] for each in listed][::-1]


@contextlib.contextmanager
def paused(server: EmbeddedRedis) -> Iterator[None]:
    try:
        server.pause()
        yield
    finally:
        server.resume()


def test_a_cluster_confirms_by_the_replica_of_the_node_that_has_the_queue(cluster, anywhere):
    """A stopped one is missed there, and a repetition counts once."""
    cluster.flush()
    with on_cluster(cluster, anywhere, **PATIENT) as patient, on_cluster(cluster, anywhere, **HASTY) as hasty:
        assert publish(anywhere, patient, "first") is True
        assert lying_on(cluster.replica, patient) == [b"first"]
        with paused(cluster.replica.server):
            error = unconfirmed(anywhere, hasty, "second")
            assert "0 of 1 replicas have it" in str(error)
        assert repeat(anywhere, hasty, error, "second") is True
        assert lying_on(cluster.replica, hasty) == lying_on(cluster.nodes[0], hasty) == [b"first", b"second"]


def test_a_cluster_client_of_little_patience_is_not_made_to_wait_past_it(cluster, anywhere):
    """Each question ends before its client would call it lost: the answer is what the replicas have, and no timeout."""
    cluster.flush()
    slow = {"confirm_replicas": 1, "confirm_timeout_seconds": 1.0}
    with on_cluster(cluster, anywhere, client={"socket_timeout": 0.4}, **slow) as queue:
        with paused(cluster.replica.server):
            error = lacking(anywhere, queue, "0 of 1 replicas have it")
        assert error.__cause__ is None
        assert repeat(anywhere, queue, error) is True
        assert lying_on(cluster.nodes[0], queue) == [b"message"]


def test_a_repetition_finds_the_promoted_replica_of_a_cluster(cluster):  # the last here: it leaves the roles changed
    """The client knew the lost node alone, and nothing but the repetition asks who has the slot now."""
    cluster.flush()
    lost, promoted = cluster.nodes[0], cluster.replica
    with contextlib.ExitStack() as opened:
        shells = [opened.enter_context(contextlib.closing(WAYS[way](0))) for way in COLOURS]
        queues = [opened.enter_context(on_cluster(cluster, shell, **HASTY)) for shell in shells]
        with paused(promoted.server):
            errors = [unconfirmed(shell, queue) for shell, queue in zip(shells, queues, strict=True)]
            lost.server.kill()
        until(lambda: lying_on(promoted, queues[0]) == [b"message"] * 2)
        promoted.cluster("FAILOVER", "TAKEOVER")
        until(lambda: cluster.owner(queues[0].key.pending) is promoted)
        until(lambda: all(node.layout() == promoted.layout() for node in cluster.nodes[1:3]))
        try:
            for shell, queue, error in zip(shells, queues, errors, strict=True):
                deadline = time.monotonic() + PATIENCE_SECONDS / 3
                # There it waits in vain for a replica, which is another thing to say than that nobody answers.
                while "0 of 1 replicas have it" not in str(error := unconfirmed(shell, queue, repeat_of=error)):
                    assert time.monotonic() < deadline, error
        finally:
            lost.server.restart()
        for shell, queue, error in zip(shells, queues, errors, strict=True):
            assert repeat(shell, queue, error) is True
        assert lying_on(promoted, queues[0]) == [b"message"] * 2
