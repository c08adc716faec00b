"""Publishes that meet share a request, and each has its own answer, whatever becomes of the others."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
import redis

from redis_message_queue import CleanupFailedError, QueueBackpressureError, RetryBudgetExhaustedError
from redis_message_queue.protocol.group_commit import SingleCall
from redis_message_queue.stored.envelope import Envelope
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.values.errors import LuaScriptError, NotPermittedError, PayloadTypeError
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.crowd import Crowd, Held, answers
from tests.faults.proxy import ARRIVE_LATE, BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, delayed
from tests.faults.stepping import LIBRARY, CtrlC

pytestmark = pytest.mark.topic("Group commit")

KEYS = QueueKeys.of("faults")


@pytest.fixture(params=["sync", "async"])
def crowd(request, server, truth):
    """Opens crowds, directly at the server or at another port."""
    opened = []

    def open_crowd(port=server.port, **options):
        opened.append(Crowd(port, is_async=request.param == "async", **options))
        opened[-1].call(opened[-1].queue.publish, "first contact")
        truth.clear()
        return opened[-1]

    yield open_crowd
    for one in opened:
        one.__exit__()


def stored(client: redis.Redis, key: str = KEYS.pending) -> list[bytes]:
    """The payloads, oldest first."""
    found: Any = client.lrange(key, 0, -1)
    return [Envelope(one).payload for one in reversed(found)]


def scripts(client: redis.Redis) -> int:
    """How many scripts the server has executed."""
    return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def numbered(count: int) -> list[str]:
    return [f"{nth:04}" for nth in range(count)]


@pytest.mark.promise("Concurrent publishes of one queue object share requests.")
def test_everything_that_waits_goes_in_one_request_in_order_of_arrival(crowd, truth):
    many = crowd()
    before = scripts(truth.client)
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(12)]
    assert answers(outcomes) == [True] * 12
    assert stored(truth.client) == [one.encode() for one in numbered(12)]
    assert scripts(truth.client) - before == 2


def test_a_lone_publish_goes_at_once_by_the_short_script(crowd, truth, proxy):
    many = crowd(proxy.port)
    proxy.seen.clear()
    assert all(many.call(many.queue.publish, one) for one in numbered(3))
    assert proxy.seen["publish"] == 3
    assert proxy.seen["enqueue"] == 0


@pytest.mark.parametrize(
    ("options", "details"),
    [
        pytest.param({"pending_overload_policy": "block", "max_pending_length": 100}, {}, id="block"),
        pytest.param({"retry_budget_seconds": 0}, {}, id="no retries"),
    ],
)
def test_some_queues_never_share_a_request(crowd, truth, options, details):
    many = crowd(**options)
    assert many.groups("publish") == []
    before = scripts(truth.client)
    with Held(truth.client):
        outcomes = [many.begin(many.queue.publish, one, **details) for one in numbered(3)]
    assert answers(outcomes) == [True] * 3
    assert scripts(truth.client) - before == 3


def test_publish_many_keeps_its_own_chunk(crowd, truth):
    """All or nothing, also beside a group."""
    many = crowd(max_pending_length=4)
    with Held(truth.client):
        singles = [many.publish(one) for one in numbered(2)]
        chunk = many.begin(many.queue.publish_many, ["a", "b", "c", "d"])
        singles += [many.publish("z")]
    results = answers([*singles, chunk])
    assert results[:3] == [True] * 3
    assert isinstance(results[3], QueueBackpressureError)


def test_a_group_has_at_most_a_thousand_messages(tasks, truth):
    async def publish_all() -> list[bool]:
        return await asyncio.gather(*[tasks.queue.publish(one) for one in numbered(1_501)])

    before = scripts(truth.client)
    with Held(truth.client):
        outcome = tasks.begin(publish_all)
        until(lambda: tasks.under_way() == 1_501)
    assert outcome.result(LIMIT_SECONDS) == [True] * 1_501
    assert scripts(truth.client) - before == 3
    assert stored(truth.client) == [one.encode() for one in numbered(1_501)]


def test_a_group_has_at_most_four_megabytes(crowd, truth):
    many = crowd()
    before = scripts(truth.client)
    with Held(truth.client):
        outcomes = [many.publish("first"), *[many.publish(f"{nth}" + "x" * 1_500_000) for nth in range(5)]]
    assert answers(outcomes) == [True] * 6
    assert scripts(truth.client) - before == 1 + 3
    assert [one[:1] for one in stored(truth.client)] == [b"f", b"0", b"1", b"2", b"3", b"4"]


# Each caller has its own answer


def test_the_same_key_twice_in_a_group_stores_the_first_and_tells_the_second(crowd, truth):
    many = crowd()
    with Held(truth.client):
        outcomes = [
            many.publish("lone"),
            many.publish("a", deduplication_key="k"),
            many.publish("b", deduplication_key="other"),
            many.publish("c", deduplication_key="k"),
        ]
    assert answers(outcomes) == [True, True, True, False]
    assert stored(truth.client) == [b"lone", b"a", b"b"]


def test_a_full_queue_refuses_those_that_have_no_room_each_with_its_own_error(crowd, truth):
    many = crowd(max_pending_length=3)
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(6)]
    results = answers(outcomes)
    assert results[:3] == [True] * 3
    errors = results[3:]
    assert all(isinstance(one, QueueBackpressureError) for one in errors)
    assert len({id(one) for one in errors}) == len({one.message_id for one in errors}) == 3
    assert all("nothing was published" in str(one) for one in errors)
    assert stored(truth.client) == [b"0000", b"0001", b"0002"]


def test_dropped_messages_are_told_to_the_caller_that_dropped_them(crowd, truth):
    """In the thread or task of that caller, before its own event."""
    told: dict[object, list[str]] = {}

    def here() -> object:
        return asyncio.current_task() if many.is_async else threading.get_ident()

    def listen(event: Any) -> None:
        told.setdefault(here(), []).append(f"{event.operation}/{event.message_id}")

    many = crowd(max_pending_length=2, pending_overload_policy="drop_oldest", max_delivery_count=None, on_event=listen)
    told.clear()
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(5)]
    assert answers(outcomes) == [True] * 5
    assert stored(truth.client) == [b"0003", b"0004"]
    assert len(told) == 5  # every caller by itself
    assert sorted(len(one) for one in told.values()) == [1, 1, 2, 2, 2]
    published = [one[-1] for one in told.values()]
    dropped = {one[0].partition("/")[2] for one in told.values() if len(one) == 2}
    assert dropped < {one.partition("/")[2] for one in published}
    assert all(one.startswith("publish/") for one in published)


def test_events_have_the_time_of_their_own_call(crowd, truth):
    events: list[Any] = []
    many = crowd(on_event=events.append)
    events.clear()
    with Held(truth.client):
        outcomes = [many.publish("a"), many.publish("b")]
        until(lambda: not threading.Event().wait(0.2))
        outcomes += [many.publish("c")]
    assert answers(outcomes) == [True] * 3
    ids = [Envelope(one).id.hex() for one in reversed(truth.client.lrange(KEYS.pending, 0, -1))]
    took = {event.message_id: event.duration_seconds for event in events}
    assert {*took} == {*ids}
    assert took[ids[1]] > took[ids[2]]


def test_what_is_wrong_with_one_message_is_found_before_it_joins(crowd, truth):
    many = crowd()
    with Held(truth.client):
        first = many.publish("a")
        with pytest.raises(PayloadTypeError):
            many.call(many.queue.publish, {"not": {1, 2}})
        second = many.publish("b")
    assert answers([first, second]) == [True, True]


@pytest.mark.parametrize("limit", [None, 100])
def test_one_tenants_bad_key_fails_only_its_caller(crowd, truth, limit):
    many = crowd(max_pending_length=limit)
    truth.client.hset(KEYS.tenant_pending("bad"), "not", "ours")
    with Held(truth.client):
        outcomes = [
            many.publish("lone"),
            many.publish("a", tenant="good"),
            many.publish("b", tenant="bad"),
            many.publish("c", tenant="good"),
            many.publish("d"),
        ]
    results = answers(outcomes)
    assert isinstance(results[2], LuaScriptError) and "WRONGTYPE" in str(results[2])
    assert [results[nth] for nth in (0, 1, 3, 4)] == [True] * 4
    assert stored(truth.client) == [b"lone", b"d"]
    assert stored(truth.client, KEYS.tenant_pending("good")) == [b"a", b"c"]


def test_a_user_who_lacks_a_later_command_stores_nothing_twice(crowd, truth):
    """The script stops half-way, as that of a single publish does: each gets its own error, and none is sent again."""
    many = crowd()
    truth.client.acl_setuser("default", enabled=True, commands=["-psetex"])
    try:
        with Held(truth.client):
            outcomes = [many.publish(one) for one in numbered(5)]
        errors = answers(outcomes)
    finally:
        truth.client.acl_setuser("default", enabled=True, commands=["+psetex"])
    assert all(isinstance(one, NotPermittedError) for one in errors)
    assert len({one.message_id for one in errors}) == 5
    assert Counter(stored(truth.client)) == Counter(one.encode() for one in numbered(5))


def test_a_full_server_refuses_each_by_itself_and_stores_nothing(crowd, truth):
    many = crowd()
    try:
        with Held(truth.client):
            outcomes = [many.publish(one) for one in numbered(4)]
            truth.client.config_set("maxmemory", 1)
        results = answers(outcomes)
    finally:
        truth.client.config_set("maxmemory", 0)
    assert all(isinstance(one, LuaScriptError) for one in results)
    assert len({id(one) for one in results}) == 4
    assert stored(truth.client) == []
    assert many.call(many.queue.publish, "after") is True


# Lost requests and replies


@pytest.mark.parametrize("fault", [CUT_BEFORE, CUT_AFTER], ids=str)
@pytest.mark.parametrize("limit", [None, 100])
def test_a_lost_request_or_reply_of_a_group_stores_every_message_once(crowd, truth, proxy, fault, limit):
    many = crowd(proxy.port, max_pending_length=limit)
    proxy.meet("enqueue", *([fault] * (1 if limit is None else 2)))
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(8)]
    assert answers(outcomes) == [True] * 8
    assert proxy.planned() == 0
    assert stored(truth.client) == [one.encode() for one in numbered(8)]


def test_a_refused_group_of_which_a_request_may_still_arrive_is_not_sent_one_by_one(crowd, truth, proxy):
    """Under another number, late requests of the group and of the single publishes would both be executed."""
    many = crowd(proxy.port, retry_budget_seconds=1)
    proxy.meet("publish", PASS)
    proxy.always("publish", ARRIVE_LATE)
    proxy.meet("enqueue", ARRIVE_LATE)
    truth.client.hset(KEYS.tenant_pending("bad"), "not", "ours")
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(3)]
        outcomes += [many.publish("0003", tenant="bad")]
    first, *refused = answers(outcomes)
    assert first is True
    assert len({one.message_id for one in refused}) == 3
    assert all(isinstance(one, LuaScriptError) and "WRONGTYPE" in str(one) for one in refused)
    truth.client.delete(KEYS.tenant_pending("bad"))
    assert proxy.send_late_requests()
    assert stored(truth.client) == [b"0000", b"0001", b"0002"]


def test_publishes_beside_faults_are_stored_once_each(crowd, truth, proxy):
    many = crowd(proxy.port)
    for name in ("publish", "enqueue"):
        proxy.meet(name, *[CUT_BEFORE, CUT_AFTER, delayed(0.01)] * 5)
    outcomes = [many.begin(many.queue.publish, one) for one in numbered(200)]
    assert answers(outcomes) == [True] * 200
    assert Counter(stored(truth.client)) == Counter(one.encode() for one in numbered(200))


def test_each_caller_gives_up_when_its_own_budget_is_spent(crowd, truth, proxy):
    """Waiting included; who was not sent says so."""
    many = crowd(proxy.port, retry_budget_seconds=0.5)
    proxy.always("publish", CUT_BEFORE)
    proxy.always("enqueue", CUT_BEFORE)
    results = answers([many.begin(many.queue.publish, one) for one in numbered(5)])
    assert all(isinstance(one, RetryBudgetExhaustedError) for one in results)
    assert len({id(one) for one in results}) == 5
    proxy.relent()
    assert many.call(many.queue.publish, "after") is True
    assert stored(truth.client)[-1] == b"after"


def test_a_caller_that_waits_behind_a_silent_server_gives_up_on_time_and_was_not_sent(crowd, truth):
    many = crowd(retry_budget_seconds=0.3)
    with Held(truth.client):
        first = many.publish("lone")
        second = many.publish("late")
        (error,) = answers([second])
        assert isinstance(error, RetryBudgetExhaustedError)
        assert "nothing was sent" in str(error)
        assert error.message_id is not None
        assert not first.done()
    assert answers([first]) == [True]
    assert stored(truth.client) == [b"lone"]


def test_when_the_sender_gives_up_the_next_repeats_its_number(crowd, truth, proxy):
    """The group was executed and its reply lost; the second caller gets the stored answer."""
    many = crowd(proxy.port, retry_budget_seconds=20)
    group = many.groups()[0]
    proxy.meet("enqueue", *[CUT_AFTER] * 3)
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(4)]
        group._callers.waiting[0].limit = 0.0  # the time limit of the caller that will send
    results = answers(outcomes)
    assert isinstance(results[1], RetryBudgetExhaustedError)
    assert "unknown" in str(results[1])
    assert [results[nth] for nth in (0, 2, 3)] == [True] * 3
    assert stored(truth.client) == [one.encode() for one in numbered(4)]


# Cancellation


@pytest.fixture
def tasks(server, truth):
    with Crowd(server.port, is_async=True) as opened:
        opened.call(opened.queue.publish, "first contact")
        truth.clear()
        yield opened


def test_a_caller_that_is_cancelled_before_its_group_is_sent_takes_its_message_out(tasks, truth):
    with Held(truth.client):
        outcomes = [tasks.publish(one) for one in numbered(4)]
        assert outcomes[2].cancel()
        until(lambda: tasks.under_way() == 3)
    assert answers([outcomes[0], outcomes[1], outcomes[3]]) == [True] * 3
    assert stored(truth.client) == [b"0000", b"0001", b"0003"]


def test_when_the_sender_is_cancelled_another_caller_repeats_its_number(tasks, truth):
    """Nobody else is cancelled, and everything that was sent is stored once."""
    first = tasks.publish("lone")
    answers([first])
    with Held(truth.client):
        lone = tasks.publish("0000")
        outcomes = [tasks.publish(one) for one in numbered(4)[1:]]
        lone.cancel()  # the next one sends the group now, and the server does not answer
        until(lambda: tasks.groups()[0]._callers.group is not None)
        sent = tasks.groups()[0]._callers.group
        outcomes[0].cancel()
        until(lambda: tasks.under_way() == 2)
        assert tasks.groups()[0]._callers.group is sent
    assert answers(outcomes[1:]) == [True, True]
    # A request that was cut off may have been executed, as ever.
    found = [one for one in stored(truth.client) if one not in (b"lone", b"0000")]
    assert found == [b"0001", b"0002", b"0003"]


def test_cancelling_everybody_leaves_a_queue_that_works(tasks, truth):
    with Held(truth.client):
        outcomes = [tasks.publish(one) for one in numbered(6)]
        for one in reversed(outcomes):
            one.cancel()
        until(lambda: tasks.under_way() == 0)
    assert tasks.call(tasks.queue.publish, "after") is True
    assert stored(truth.client)[-1] == b"after"


def test_cancelled_publishers_at_random_store_each_message_at_most_once(tasks, truth, proxy):
    """And exactly once if the publish has returned."""
    outcomes = [tasks.begin(tasks.queue.publish, one) for one in numbered(300)]
    for nth in range(0, 300, 3):
        outcomes[nth].cancel()
    done = {nth for nth, one in enumerate(outcomes) if not one.cancelled() and answers([one]) == [True]}
    until(lambda: tasks.under_way() == 0)
    found = Counter(stored(truth.client))
    assert max(found.values()) == 1
    assert {f"{nth:04}".encode() for nth in done} <= {*found}
    assert len(done) >= 200


# Draining


def test_a_drain_waits_for_callers_in_a_group(crowd, truth):
    many = crowd()
    with Held(truth.client):
        outcomes = [many.publish(one) for one in numbered(4)]
        draining = many.begin(many.queue.drain, 60)
        with pytest.raises(TimeoutError):
            draining.result(0.2)
    assert draining.result(LIMIT_SECONDS) is True
    assert answers(outcomes) == [True] * 4


# Threads


def test_a_publish_inside_of_a_publish_does_not_wait_for_it(server, truth):
    """A signal handler that publishes while its own thread sends, or waits in line."""
    with Crowd(server.port, is_async=False) as many:
        many.call(many.queue.publish, "first contact")
        group = many.groups()[0]
        callers = group._callers
        outer = SingleCall()
        assert group.begin(outer)
        assert many.queue.publish("inside") is True  # in the thread of the sender
        waiting = start(many.queue.publish, "beside")
        until(lambda: len(callers.waiting) == 1)
        outer.is_over = True
        group.end(outer)
        assert waiting.result(LIMIT_SECONDS) is True


def test_a_sender_that_disappears_is_replaced(server, truth):
    """A Ctrl-C may come before it can pass on its turn."""
    with Crowd(server.port, is_async=False) as many:
        many.call(many.queue.publish, "first contact")
        group = many.groups()[0]
        outer = SingleCall()
        assert group.begin(outer)
        waiting = [start(many.queue.publish, one) for one in numbered(3)]
        until(lambda: len(group._callers.waiting) == 3)
        outer.is_over = True  # and no `end`
        assert answers(waiting) == [True] * 3


def test_a_silent_connection_costs_the_callers_behind_it_one_attempt(crowd, truth, proxy):
    """They are sent when the sender's attempt has ended."""
    many = crowd(proxy.port, socket_timeout=0.5)
    proxy.meet("publish", BLACK_HOLE)
    outcomes = [many.begin(many.queue.publish, one) for one in numbered(5)]
    assert answers(outcomes) == [True] * 5
    assert Counter(stored(truth.client)) == Counter(one.encode() for one in numbered(5))


@pytest.mark.promise("A Ctrl-C in a publish harms no other publish of the queue object.")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("role", ["sends alone", "sends a group", "waits"])
def test_ctrl_c_at_every_moment_of_a_publish_harms_nobody_else(server, truth, role):
    """The other callers get their answers, and their messages are stored once."""
    moment, came = 0, True
    with Crowd(server.port, is_async=False) as many:
        many.call(many.queue.publish, "first contact")
        while came:
            moment += 1
            truth.clear()
            came = interrupt(many, role, moment)
            found = Counter(stored(truth.client))
            mine = found.pop(b"mine", 0)
            assert mine <= 1 if came else mine == 1
            assert found == Counter(one.encode() for one in numbered(3)), moment
    assert moment > 20


def interrupt(many: Crowd, role: str, moment: int) -> bool:
    """Publish in this thread with a Ctrl-C at this moment, beside three others. Returns whether it came."""
    group, outer, ended = many.groups()[0], SingleCall(), threading.Event()
    others = []

    def publish_others() -> None:
        others.extend(start(many.queue.publish, one) for one in numbered(3))

    def wait_for(count: int) -> None:
        until(lambda: many.under_way() > count or ended.is_set(), "the callers wait")

    def go_on_when_all_wait() -> None:
        if role == "sends a group":
            wait_for(1)
            publish_others()
        wait_for(4)
        outer.is_over = True
        group.end(outer)

    if role != "sends alone":  # somebody else is under way until all wait
        assert start(group.begin, outer).result(LIMIT_SECONDS)
        outer.thread = outer  # its own thread has ended, and another one may get its number
        if role == "waits":
            publish_others()
            wait_for(3)
        beside = start(go_on_when_all_wait)
    try:
        with CtrlC(moment, LIBRARY) as ctrl_c:
            many.queue.publish("mine")
    finally:
        ended.set()
    if role == "sends alone":
        publish_others()
    else:
        beside.result(LIMIT_SECONDS)
    assert answers(others) == [True] * 3
    return ctrl_c.came


# Acknowledgements


def entered(many: Crowd, count: int) -> list[Any]:
    """Open blocks, one for each of as many messages."""
    many.call(many.queue.publish_many, numbered(count))
    blocks = [many.queue.process_message() for _ in range(count)]
    for block in blocks:
        many.call(block.__aenter__ if many.is_async else block.__enter__)
    return blocks


def leave(many: Crowd, block: Any) -> Any:
    """Leave a block beside the test; return when its acknowledgement has arrived."""
    return many.arrive(block.__aexit__ if many.is_async else block.__exit__, None, None, None)


@pytest.mark.promise("Concurrent acknowledgements of `process_message` blocks of one queue object share requests.")
def test_blocks_that_end_together_share_a_request(crowd, truth):
    """The first goes at once, and all others in one script."""
    many = crowd()
    blocks = entered(many, 12)
    before = scripts(truth.client)
    with Held(truth.client):
        outcomes = [leave(many, block) for block in blocks]
    assert not any(answers(outcomes))
    assert scripts(truth.client) - before == 2
    assert truth.client.hlen(KEYS.processing) == truth.client.zcard(KEYS.leases) == 0


@pytest.mark.parametrize("fault", [CUT_BEFORE, CUT_AFTER], ids=str)
def test_a_lost_request_or_reply_of_grouped_acknowledgements_harms_none(crowd, truth, proxy, fault):
    many, events = crowd(proxy.port), []
    many.open(on_event=lambda event: events.append((str(event.operation), str(event.outcome))))
    blocks = entered(many, 6)
    proxy.meet("settle", fault)
    with Held(truth.client):
        outcomes = [leave(many, block) for block in blocks]
    assert not any(answers(outcomes))
    assert proxy.planned() == 0
    assert events.count(("ack", "success")) == 6
    assert truth.client.hlen(KEYS.processing) == 0


def test_a_refused_group_of_acknowledgements_gives_each_its_own_error(crowd, truth):
    """The refused script has changed nothing, and each is sent again by itself."""
    many = crowd()
    blocks = entered(many, 4)
    ids = {block._block.claimed.message_id for block in blocks}
    truth.client.rename(KEYS.leases, "aside")
    truth.client.set(KEYS.leases, "not a sorted set")
    before = scripts(truth.client)
    with Held(truth.client):
        outcomes = [leave(many, block) for block in blocks]
    errors = answers(outcomes)
    assert all(isinstance(one, CleanupFailedError) for one in errors)
    assert {one.message_id for one in errors} == ids
    assert scripts(truth.client) - before == 5  # the first, the group, and its three
    assert truth.client.hlen(KEYS.processing) == 4


def test_a_cancelled_block_in_a_group_is_acknowledged_all_the_same(tasks, truth):
    """As a block that is acknowledged by itself; nobody else is cancelled."""
    blocks = entered(tasks, 5)
    with Held(truth.client):
        outcomes = [leave(tasks, block) for block in blocks]
        assert outcomes[0].cancel()  # who sends
        assert outcomes[2].cancel()  # and one that waits
        tasks.call(asyncio.sleep, 0.05)
        assert tasks.under_way() == 5
    assert not any(answers([outcomes[1], *outcomes[3:]]))
    until(lambda: truth.client.hlen(KEYS.processing) == 0)
