"""A publish that was not confirmed can be repeated without storing it twice."""

import contextlib
import gc
import time
from typing import Any, cast

import pytest

from redis_message_queue import (
    ConfigurationError,
    PublishNotConfirmedError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.stored.envelope import ID_BYTES, Envelope
from redis_message_queue.stored.keys import REGISTRY_KEY
from tests.concurrency import LIMIT_SECONDS, until
from tests.contract.shells import Sent
from tests.faults.durability.replicas import (
    CONFIG,
    HASTY,
    KEY,
    PATIENT,
    SYNC_AND_ASYNC,
    WAYS,
    done,
    every_way,
    follow,
    payloads,
    publish,
    repeat,
    stored,
    unconfirmed,
)
from tests.faults.proxy import FaultyProxy

pytestmark = pytest.mark.topic("Durability")


# Repeating


@pytest.mark.promise(
    "A publish can wait for replicas (`confirm_replicas`) or the disk (`confirm_fsync`); repeating it stores one "
    "message."
)
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


@pytest.mark.promise("A publish that you repeat because it was unconfirmed keeps its headers.")
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
    deadline = time.monotonic() + LIMIT_SECONDS
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
    """A publish that returns False means that the first one is safe."""
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
    cast(Any, old.sent).at -= queue._protocol.store.calls.keep_seconds
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
        pipe.set("a write", "to wait for").execute_command("WAIT", 1, int(LIMIT_SECONDS * 1000))
        assert pipe.execute()[-1] == 1
    return primary, replica


# Failover


@pytest.mark.parametrize("had_heard", [True, False], ids=["that had heard of it", "that had not"])
def test_a_repetition_after_a_failover_counts_once_on_the_promoted_replica(pair, start_server, had_heard):
    """One that had the messages confirms them, and one that never heard of them publishes them now."""
    primary, replica = pair
    with contextlib.ExitStack() as opened:
        switch = opened.enter_context(Switch(primary.port))
        other = opened.enter_context(replica.client())
        shells = {
            way.encode(): opened.enter_context(contextlib.closing(WAYS[way](switch.port))) for way in SYNC_AND_ASYNC
        }
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


# Memory


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
    assert left <= {KEY.wakeup.encode(), KEY.meta.encode(), REGISTRY_KEY.encode()}


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
    """It keeps its slot, so that none of them makes it a late request, however many there are."""
    queue = shell.queue(gateway=HASTY)
    with family.stopped():
        error = unconfirmed(shell, queue)
    for outcome in shell.publish_together(queue, [f"other {number}" for number in range(8)]):
        assert outcome is True or isinstance(outcome, PublishNotConfirmedError)
    assert repeat(shell, queue, error) is True
    assert sorted(payloads(family.primary)) == [b"message", *(b"other %d" % number for number in range(8))]
