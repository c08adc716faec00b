"""A publish that must be confirmed keeps to its time limit, and is repeated as the same call or not at all."""

import math
from collections.abc import Callable
from contextlib import suppress
from itertools import count, product
from typing import Any, cast

import pytest

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    PublishNotConfirmedError,
    QueueBackpressureError,
    QueueDrainedError,
    RetryBudgetExhaustedError,
)
from redis_message_queue.values.events import EventOperation, EventOutcome
from tests.protocol.memory import MemoryRedis
from tests.protocol.port import REPLY, REQUEST, Cancelled, Followers, Lost, MemoryPort, Talk, late
from tests.protocol.schedule import every_order
from tests.protocol.setup import Setup, check_that_slots_are_acquired_once, process_all

MOMENT = 0.005
EVERY_LOSS = (REQUEST, REPLY, late(0), late(1))

either_break = pytest.mark.parametrize("broken_by", [KeyboardInterrupt, Cancelled])


def confirming(**settings: object) -> Setup:
    """One replica must have what is published, within a second."""
    return Setup(**{"confirm_replicas": 1} | settings)


def unconfirmed(queue: QueueProtocol, message: Any = "a", repeat_of=None) -> PublishNotConfirmedError:
    with pytest.raises(PublishNotConfirmedError) as raised:
        finish(queue.publish(message, repeat_of=repeat_of))
    return raised.value


def fail_over(setup: Setup, port: MemoryPort) -> None:
    """The primary is lost, and what is promoted never heard of anything."""
    promoted = MemoryRedis()
    promoted.clock_us, promoted.ids = setup.memory.clock_us, setup.memory.ids
    setup.memory = port.memory = promoted


def talks(port: MemoryPort) -> list[Talk]:
    return [sent for sent in port.sent if isinstance(sent, Talk)]


def numbers(port: MemoryPort) -> set[bytes]:
    """Under which numbers something was published."""
    calls = [sent.spelled_out if isinstance(sent, Talk) else sent for sent in port.sent]
    return {sent.given["call"] for sent in calls}


# Asking


def test_a_publish_is_sent_once_more_on_the_connection_that_asks():
    """WAIT speaks of its own connection alone; the number makes the repetition harmless."""
    setup = confirming()
    port = setup.port(followers=Followers(in_step=1))
    assert finish(setup.queue(port).publish("a")) is True
    assert port.verbs() == ["publish", "WAIT"]
    (talk,) = talks(port)
    assert talk.spelled_out.verb == "publish"
    assert talk.question == ("WAIT", 1, 1000)
    assert numbers(port) == {b"000000000001"}
    assert setup.pending == [b"a"]


def test_a_queue_that_wants_no_confirmation_asks_for_none():
    setup = Setup()
    port = setup.port()
    assert finish(setup.queue(port).publish("a")) is True
    assert port.verbs() == ["publish"]


@pytest.mark.parametrize("after", [0.004, 0.3, 2.7])
@pytest.mark.parametrize("socket_timeout", [None, 1.0, 0.1])
def test_a_publish_returns_when_enough_have_it(after, socket_timeout):
    """However often that must be asked, because the socket does not listen for so long."""
    setup = confirming(confirm_timeout_seconds=3.0, confirm_replicas=2)
    followers = Followers(in_step=1)
    port = setup.port(followers=followers, socket_timeout=socket_timeout)
    setup.memory.at(after, lambda: setattr(followers, "in_step", 2))
    started = port.now()
    assert finish(setup.queue(port).publish("a")) is True
    assert after - MOMENT <= port.now() - started <= after + MOMENT
    assert setup.pending == [b"a"]


@pytest.mark.parametrize("seconds", [0.001, 0.25, 1.0, 3.0])
@pytest.mark.parametrize("socket_timeout", [None, 10.0, 0.3])
def test_a_publish_gives_up_when_its_time_is_over(seconds, socket_timeout):
    setup = confirming(confirm_timeout_seconds=seconds)
    port = setup.port(socket_timeout=socket_timeout)
    started = port.now()
    error = unconfirmed(setup.queue(port))
    assert seconds - MOMENT <= port.now() - started <= seconds + MOMENT
    assert setup.pending == [b"a"]
    assert (error.queue, error.operation) == ("orders", "publish")
    assert error.__cause__ is None


def test_no_question_outlasts_the_socket():
    """The server answers at the end of its time, and the client must be listening then."""
    setup = confirming(confirm_timeout_seconds=3.0)
    port = setup.port(socket_timeout=0.5)
    unconfirmed(setup.queue(port))
    milliseconds = [talk.question[-1] for talk in talks(port)]
    assert len(milliseconds) >= 7
    assert all(1 <= int(each) <= 400 for each in milliseconds)  # 0 would mean for ever


@pytest.mark.parametrize(
    ("settings", "followers", "on_retry"),
    [
        ({"confirm_replicas": 1}, Followers(), "0 of 1 replicas have it"),
        ({"confirm_replicas": 3}, Followers(in_step=2), "2 of 3 replicas have it"),
        ({"confirm_replicas": None, "confirm_fsync": True}, Followers(), "fsync not done"),
        ({"confirm_fsync": True}, Followers(on_disk=True), "fsync done, 0 of 1 replicas have it on disk"),
        ({"confirm_fsync": True}, Followers(replicas_on_disk=1), "fsync not done, 1 of 1 replicas have it on disk"),
    ],
    ids=str,
)
def test_an_error_says_what_was_missing_and_what_to_do(settings, followers, on_retry):
    setup = confirming(**settings)
    error = unconfirmed(setup.queue(setup.port(followers=followers)))
    assert on_retry in str(error)
    assert "within 1.0 s" in str(error)
    assert "repeat_of=error" in str(error)
    (stored,) = setup.list_of(setup.keys.pending)
    assert error.message_id == stored[1:17].hex()


# Losses


def test_a_loss_on_the_way_neither_loses_nor_doubles_the_message():
    """Any two of the first exchanges are lost in any way."""
    for first, second, one, other in product(range(4), range(4), EVERY_LOSS, EVERY_LOSS):
        setup = confirming(confirm_timeout_seconds=60.0)
        port = setup.port({first: one, second: other}, followers=Followers(in_step=1))
        assert finish(setup.queue(port).publish("a")) is True
        setup.memory.run_all_late_requests()
        assert setup.pending == [b"a"]
        assert len(numbers(port)) == 1


@pytest.mark.parametrize("loss", [REQUEST, REPLY], ids=repr)
@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_transient_errors_do_not_extend_the_time(loss, latency):
    """The retry budget is two minutes, and the confirmation has one second all the same."""
    setup = confirming()
    port = setup.port(dict.fromkeys(range(1, 999), loss), latency=latency, followers=Followers(in_step=1))
    started = port.now()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    assert port.now() - started <= 1.0 + 5 * latency + MOMENT
    assert isinstance(error.__cause__, RetryBudgetExhaustedError)
    assert len(talks(port)) > 3
    port.losses.clear()
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert setup.pending == [b"a"]


def test_without_a_retry_budget_the_first_loss_ends_the_asking():
    setup = confirming(retry_budget_seconds=0)
    port = setup.port({1: REPLY}, followers=Followers(in_step=1))
    queue = setup.queue(port)
    error = unconfirmed(queue)
    assert isinstance(error.__cause__, Lost)
    assert port.verbs() == ["publish", "WAIT"]
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert setup.pending == [b"a"]


@pytest.mark.parametrize("verb", ["EVAL", "WAIT"])
def test_a_server_that_answers_that_it_cannot_just_now_is_asked_again(verb):
    """LOADING, READONLY or TRYAGAIN are answers, and say no more than a broken connection does."""
    setup = confirming()
    refusals: dict[str, list[Exception]] = {verb: [Lost("LOADING"), Lost("LOADING")]}
    port = setup.port(followers=Followers(in_step=1, refusals=refusals))
    assert finish(setup.queue(port).publish("a")) is True
    assert len(talks(port)) == 3
    assert setup.pending == [b"a"]


@pytest.mark.parametrize("verb", ["EVAL", "WAIT"])
def test_a_server_that_answers_that_it_never_will_is_not_asked_again(verb):
    setup = confirming()
    refusal = PermissionError("NOPERM")
    port = setup.port(followers=Followers(in_step=1, refusals={verb: [refusal]}))
    queue = setup.queue(port)
    started = port.now()
    error = unconfirmed(queue)
    assert error.__cause__ is refusal
    assert port.now() - started <= MOMENT
    assert len(talks(port)) == 1
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert setup.pending == [b"a"]


# The disk


def test_a_queue_finds_out_once_whether_the_server_can_confirm_a_write_to_its_disk():
    setup = confirming(confirm_replicas=None, confirm_fsync=True)
    port = setup.port(followers=Followers(on_disk=True))
    queue = setup.queue(port)
    for message in "ab":
        assert finish(queue.publish(message)) is True
    assert port.verbs() == ["WAITAOF", "publish", "WAITAOF", "publish", "WAITAOF"]
    assert [talk.question for talk in talks(port)] == [
        ("WAITAOF", 1, 0, 1),
        ("WAITAOF", 1, 0, 1000),
        ("WAITAOF", 1, 0, 1000),
    ]


def test_a_server_that_cannot_confirm_a_write_to_its_disk_is_found_out_before_anything_is_written():
    setup = confirming(confirm_fsync=True)
    refusals = [ValueError("unknown command 'WAITAOF'") for _ in range(2)]
    port = setup.port(followers=Followers(refusals={"WAITAOF": list(refusals)}))
    queue = setup.queue(port)
    for refusal in refusals:
        with pytest.raises(ConfigurationError, match=r"appendonly yes.*unknown command 'WAITAOF'") as raised:
            finish(queue.publish("a"))
        assert raised.value.__cause__ is refusal
        assert (raised.value.queue, raised.value.operation) == ("orders", "publish")
    assert port.verbs() == ["WAITAOF", "WAITAOF"]
    assert setup.memory.keys() == []


@pytest.mark.parametrize("loss", [REQUEST, REPLY], ids=repr)
def test_a_question_about_the_disk_that_was_lost_is_asked_again(loss):
    setup = confirming(confirm_replicas=None, confirm_fsync=True)
    port = setup.port({0: loss}, followers=Followers(on_disk=True))
    assert finish(setup.queue(port).publish("a")) is True
    assert port.verbs() == ["WAITAOF", "WAITAOF", "publish", "WAITAOF"]


def test_a_server_that_cannot_tell_about_its_disk_just_now_is_asked_again():
    """While it loads its file, or follows a primary that is gone, it is not misconfigured."""
    setup = confirming(confirm_replicas=None, confirm_fsync=True)
    port = setup.port(followers=Followers(on_disk=True, refusals={"WAITAOF": [Lost("LOADING")]}))
    assert finish(setup.queue(port).publish("a")) is True
    assert setup.pending == [b"a"]


# Repeating


def test_a_repetition_is_the_same_call():
    """The same number, the same id; what it repeats was published once."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    again = unconfirmed(queue, repeat_of=error)
    port.followers.in_step = 1
    assert finish(queue.publish("a", repeat_of=again)) is True
    assert again.message_id == error.message_id
    assert len(numbers(port)) == 1
    assert setup.pending == [b"a"]


def test_a_repetition_counts_though_the_message_is_long_gone():
    """A consumer has handled it; the answer is remembered, and nothing new enters the line."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    assert process_all(setup.queue()) == [b"a"]
    port.followers.in_step = 1
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert setup.places == {b"a": 1}
    assert setup.pending == []


def test_a_repetition_on_a_server_that_never_heard_of_it_publishes_it():
    """Once: the next repetition finds it there."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    fail_over(setup, port)
    again = unconfirmed(queue, repeat_of=error)
    assert setup.pending == [b"a"]
    port.followers.in_step = 1
    assert finish(queue.publish("a", repeat_of=again)) is True
    assert setup.pending == [b"a"]


@pytest.mark.parametrize("in_step", [1, 0], ids=["with a replica", "without"])
def test_a_repetition_on_a_server_that_is_full_says_so(in_step):
    """What was promoted has no room: nothing is there to be confirmed, and the slot is free again."""
    setup = confirming(max_pending_length=1)
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    fail_over(setup, port)
    assert finish(setup.queue(setup.port(followers=Followers(in_step=1))).publish("other")) is True
    port.followers.in_step = in_step
    with pytest.raises(QueueBackpressureError) as raised:
        finish(queue.publish("a", repeat_of=error))
    assert raised.value.message_id == error.message_id
    assert setup.pending == [b"other"]
    check_that_slots_are_acquired_once(queue)


def test_a_repetition_asks_for_no_deduplication_key():
    """It is the same call, and knows its marker already."""
    asked = []

    def key(message: Any) -> str:
        asked.append(message)
        return "key"

    setup = confirming()
    port = setup.port()
    queue = setup.queue(port, deduplication=True, get_deduplication_key=key)
    error = unconfirmed(queue)
    port.followers.in_step = 1
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert asked == ["a"]
    assert finish(queue.publish("a")) is False
    assert setup.pending == [b"a"]


def refused(queue: QueueProtocol, port: MemoryPort, message: Any, repeat_of: Any, *, match: str) -> None:
    """Nothing is sent; the error is one of ours, and knows its queue."""
    sent = len(port.sent)
    with pytest.raises(ConfigurationError, match=match) as raised:
        finish(queue.publish(message, repeat_of=repeat_of))
    assert len(port.sent) == sent
    assert (raised.value.queue, raised.value.operation) == ("orders", "publish")


@pytest.mark.parametrize("given", ["error", 1, True, ValueError("a"), PublishNotConfirmedError], ids=repr)
def test_what_is_no_such_error_cannot_be_repeated(given):
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    unconfirmed(queue)
    refused(queue, port, "a", given, match="repeat_of must be a PublishNotConfirmedError")
    with pytest.raises(TypeError):
        finish(queue.publish("a", repeat_of=given))


def test_an_error_that_nobody_raised_cannot_be_repeated():
    setup = confirming()
    port = setup.port()
    refused(setup.queue(port), port, "a", PublishNotConfirmedError("made up"), match="another queue object")


def test_an_error_is_repeated_where_it_came_from():
    """Another queue object has other slots, even for the same queue, and a forked child has none of its parent's."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    elsewhere = setup.port(followers=Followers(in_step=1))
    refused(setup.queue(elsewhere), elsewhere, "a", error, match="another queue object")
    port.pid = 2
    refused(queue, port, "a", error, match="another queue object")
    port.pid, port.followers.in_step = 1, 1
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert setup.pending == [b"a"]


def test_an_error_is_repeated_with_its_own_message():
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue, {"number": 1})
    refused(queue, port, {"number": 2}, error, match="another message")
    refused(queue, port, "other", error, match="another message")
    port.followers.in_step = 1
    assert finish(queue.publish({"number": 1}, repeat_of=error)) is True
    assert len(setup.pending) == 1


def test_a_confirmed_publish_is_not_repeated_again():
    """By none of the errors on the way: its slot may be in other hands."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    first = unconfirmed(queue)
    second = unconfirmed(queue, repeat_of=first)
    port.followers.in_step = 1
    assert finish(queue.publish("a", repeat_of=first)) is True
    for error in (first, second):
        refused(queue, port, "a", error, match="confirmed already")
    assert finish(queue.publish("b")) is True
    assert setup.pending == [b"a", b"b"]


@pytest.mark.parametrize(("budget", "forgotten_after"), [(120.0, 90.0), (0.0, 30.0)])
def test_an_error_is_not_repeated_when_redis_may_have_forgotten_the_call(budget, forgotten_after):
    """An answer is kept for the retry budget and a minute more; half of that is a safe age."""
    setup = confirming(retry_budget_seconds=budget)
    port = setup.port()
    queue = setup.queue(port)
    young, old = unconfirmed(queue, "young"), unconfirmed(queue, "old")
    port.followers.in_step = 1
    setup.memory.pass_time(forgotten_after - 3)
    assert finish(queue.publish("young", repeat_of=young)) is True
    setup.memory.pass_time(3)
    refused(queue, port, "old", old, match="may have forgotten")
    assert setup.pending == [b"young", b"old"]


def test_a_drained_queue_repeats_nothing():
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    assert finish(queue.drain(0)) is True
    sent = len(port.sent)
    with pytest.raises(QueueDrainedError):
        finish(queue.publish("a", repeat_of=error))
    assert len(port.sent) == sent


# Slots


def test_a_publish_that_may_be_repeated_keeps_its_slot():
    """Another call under it would make the repetition a late request."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    errors = [unconfirmed(queue, message) for message in "abc"]
    assert len({cast(Any, error.sent).slot.key for error in errors}) == 3
    check_that_slots_are_acquired_once(queue)
    port.followers.in_step = 1
    assert finish(queue.publish("d")) is True
    assert [finish(queue.publish(message, repeat_of=error)) for message, error in zip("abc", errors, strict=True)] == [
        True
    ] * 3
    assert setup.pending == [b"a", b"b", b"c", b"d"]


def test_a_confirmed_publish_gives_its_slot_back():
    """At once or after repetitions: a serial publisher needs one key in Redis."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    for number in range(10):
        port.followers.in_step = number % 2
        if number % 2:
            assert finish(queue.publish("a")) is True
        else:
            error = unconfirmed(queue)
            port.followers.in_step = 1
            assert finish(queue.publish("a", repeat_of=error)) is True
    check_that_slots_are_acquired_once(queue)
    assert len(setup.memory.keys("::reply::")) == 1


def test_an_error_that_is_thrown_away_takes_its_slot_along():
    """Each leaves one key that ends by itself; the queue goes on with a fresh one."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    for _ in range(5):
        unconfirmed(queue)
    assert len(setup.memory.keys("::reply::")) == 5
    setup.memory.pass_time(queue.store.calls.keep_seconds + 1)
    assert setup.memory.keys("::reply::") == []


def test_two_repetitions_at_the_same_time_count_once_and_free_one_slot():
    """In every order of their steps: two callers with one slot would be given each other's answers."""

    def begin():
        setup = confirming()
        port = setup.port(suspends=False)
        queue = setup.queue(port)
        error = unconfirmed(queue)
        port.suspends, port.followers.in_step = True, 1
        outcomes: list[object] = []

        async def repeat() -> None:
            try:
                outcomes.append(await queue.publish("a", repeat_of=error))
            except ConfigurationError:
                outcomes.append("refused")

        def check() -> None:
            port.suspends = False
            assert outcomes in ([True, True], [True, "refused"], ["refused", True])
            assert setup.pending == [b"a"]
            check_that_slots_are_acquired_once(queue)

        return setup.memory, [repeat(), repeat()], check

    every_order(begin)


def test_two_threads_that_begin_a_repetition_together_free_one_slot():
    """Both have looked whether it may be repeated before either has begun."""
    setup = confirming()
    port = setup.port()
    queue = setup.queue(port)
    error = unconfirmed(queue)
    port.followers.in_step = 1
    begun = [queue.store.senders[0].send_again(queue.store.senders[0].find_sent(error, [b"a"])) for _ in range(2)]
    assert finish(begun[0]).accepted
    with suppress(ConfigurationError):
        finish(begun[1])
    assert setup.pending == [b"a"]
    check_that_slots_are_acquired_once(queue)


# Breaking off


def break_everywhere(play: Callable[..., None], check: Callable[..., None], broken_by, begin) -> None:
    """Play and check, once for each point where the port can be broken off."""
    for at in count():
        setup, port, queue, *more = begin()
        port.points.clear()
        port.break_at, port.break_with = (at,), broken_by
        with suppress(KeyboardInterrupt, Cancelled):
            play(queue, *more)
        points, port.break_at = list(port.points), ()
        if at >= len(points):
            assert at >= 4, "the play was too short to prove anything"
            return
        try:
            check(setup, queue, *more)
        except BaseException as error:
            error.add_note(f"broken off {points[at]}")
            raise


@either_break
def test_a_publish_that_was_broken_off_anywhere_counts_once_or_not_at_all(broken_by):
    """No two callers acquire its slot; the next publish uses another one."""

    def begin():
        setup = confirming()
        port = setup.port(followers=Followers(in_step=1))
        return setup, port, setup.queue(port)

    def play(queue):
        finish(queue.publish("a"))

    def check(setup, queue):
        assert setup.pending in ([], [b"a"])
        check_that_slots_are_acquired_once(queue)
        assert finish(queue.publish("b")) is True
        assert setup.pending in ([b"b"], [b"a", b"b"])
        assert finish(queue.drain(0)) is True

    break_everywhere(play, check, broken_by, begin)


@either_break
def test_a_repetition_that_was_broken_off_anywhere_can_be_repeated(broken_by):
    def begin():
        setup = confirming()
        port = setup.port()
        queue = setup.queue(port)
        error = unconfirmed(queue)
        port.followers.in_step = 1
        return setup, port, queue, error

    def play(queue, error):
        for _ in range(3):  # so that there are points enough
            unconfirmed_again(queue, error)
        finish(queue.publish("a", repeat_of=error))

    def unconfirmed_again(queue, error):
        followers = queue.port.followers
        followers.in_step = 0
        try:
            unconfirmed(queue, repeat_of=error)
        finally:
            followers.in_step = 1

    def check(setup, queue, error):
        assert finish(queue.publish("a", repeat_of=error)) is True
        assert setup.pending == [b"a"]
        check_that_slots_are_acquired_once(queue)

    break_everywhere(play, check, broken_by, begin)


# At the limit


@pytest.mark.parametrize("policy", ["raise", "block"])
def test_a_full_queue_asks_nobody(policy):
    """There is nothing to confirm."""
    setup = confirming(max_pending_length=1, pending_overload_policy=policy)
    port = setup.port(followers=Followers(in_step=1))
    queue = setup.queue(port)
    assert finish(queue.publish("a")) is True
    port.sent.clear()
    with pytest.raises(QueueBackpressureError):
        finish(queue.publish("b"))
    assert talks(port) == []
    assert setup.pending == [b"a"]


def test_a_publish_that_waited_for_room_is_confirmed_under_the_number_that_found_it():
    """And it has the time of its confirmation left, however long it waited."""
    limit = {"pending_overload_block_timeout_seconds": 5.0}
    setup = confirming(max_pending_length=1, pending_overload_policy="block", **limit)
    port = setup.port(followers=Followers(in_step=1))
    queue = setup.queue(port)
    assert finish(queue.publish("a")) is True
    setup.memory.at(2.0, lambda: process_all(setup.queue()))
    setup.memory.at(2.0, lambda: setattr(port.followers, "in_step", 0))
    error = unconfirmed(queue, "b")
    assert talks(port)[-1].spelled_out.given["call"] == port.sent[-2].given["call"]
    assert talks(port)[-1].question == ("WAIT", 1, 1000)
    assert setup.pending == [b"b"]
    port.followers.in_step = 1
    assert finish(queue.publish("b", repeat_of=error)) is True
    assert setup.pending == [b"b"]


def on_retry(queue_events: list) -> list[tuple[str, str, str]]:
    return [(event.operation, event.outcome, event.message_id) for event in queue_events]


def test_what_was_dropped_is_told_once_however_often_the_publish_is_repeated():
    events: list = []
    setup = confirming(max_pending_length=1, pending_overload_policy="drop_oldest")
    port = setup.port(followers=Followers(in_step=1))
    queue = setup.queue(port, on_event=events.append)
    assert finish(queue.publish("a")) is True
    first = events.pop().message_id
    port.followers.in_step = 0
    error = unconfirmed(queue, "b")
    again = unconfirmed(queue, "b", error)
    port.followers.in_step = 1
    assert finish(queue.publish("b", repeat_of=again)) is True
    assert setup.pending == [b"b"]
    second = error.message_id
    expected = [
        *[(EventOperation.PUBLISH, EventOutcome.FAILURE, second)] * 2,
        (EventOperation.DROPPED, EventOutcome.SUCCESS, first),
        (EventOperation.PUBLISH, EventOutcome.SUCCESS, second),
    ]
    assert sorted(on_retry(events)) == sorted(expected)


def test_what_was_dropped_is_told_though_the_publish_is_not_confirmed():
    """It is gone for good, whatever becomes of the message that took its place."""
    events: list = []
    setup = confirming(max_pending_length=1, pending_overload_policy="drop_oldest")
    port = setup.port(followers=Followers(in_step=1))
    queue = setup.queue(port, on_event=events.append)
    assert finish(queue.publish("a")) is True
    first = events.pop().message_id
    port.followers.in_step = 0
    unconfirmed(queue, "b")
    assert (EventOperation.DROPPED, EventOutcome.SUCCESS, first) in on_retry(events)


def test_what_a_promoted_replica_drops_for_a_repetition_is_told():
    """It never heard of the message and is full; another one has to leave there."""
    events: list = []
    setup = confirming(max_pending_length=1, pending_overload_policy="drop_oldest")
    port = setup.port()
    queue = setup.queue(port, on_event=events.append)
    error = unconfirmed(queue)
    fail_over(setup, port)
    other = unconfirmed(setup.queue(setup.port()), "other").message_id
    port.followers.in_step = 1
    assert finish(queue.publish("a", repeat_of=error)) is True
    assert setup.pending == [b"a"]
    assert (EventOperation.DROPPED, EventOutcome.SUCCESS, other) in on_retry(events)


# Options


NOT_A_COUNT = [0, -1, True, False, 1.0, math.nan, "1", [1]]
NOT_A_TIME = [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, True, False, "1", None]
NOT_A_FLAG = [0, 1, None, "yes", math.nan]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("confirm_replicas", value) for value in NOT_A_COUNT),
        *(("confirm_timeout_seconds", value) for value in NOT_A_TIME),
        *(("confirm_fsync", value) for value in NOT_A_FLAG),
    ],
    ids=repr,
)
def test_options_that_cannot_work_are_refused_by_name(name, value):
    """A wrong type is a TypeError too, anything else a ValueError."""
    with pytest.raises(ConfigurationError, match=name) as refusal:
        GatewayOptions(**{name: value})
    right_type = not isinstance(value, bool) and isinstance(value, int | float) and name != "confirm_fsync"
    if not right_type or (name == "confirm_replicas" and isinstance(value, float)):
        assert isinstance(refusal.value, ConfigurationTypeError)


def test_the_smallest_options_are_accepted():
    options = GatewayOptions(confirm_replicas=1, confirm_fsync=True, confirm_timeout_seconds=0.001)
    assert (options.confirm_replicas, options.confirm_fsync, options.confirm_timeout_seconds) == (1, True, 0.001)
    defaults = GatewayOptions()
    assert (defaults.confirm_replicas, defaults.confirm_fsync, defaults.confirm_timeout_seconds) == (None, False, 1.0)
