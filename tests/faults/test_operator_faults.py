"""Redrives, purges and hand-offs lose and duplicate nothing when they are cut, killed, late or concurrent."""

import asyncio
import contextlib
import inspect
import random
import signal
import time
from collections import Counter

import pytest
import redis
import redis.asyncio

from redis_message_queue import CleanupFailedError, LeaseLostError, RedisMessageQueue, RetryPolicy
from tests.concurrency import LIMIT_SECONDS, beside, start, until
from tests.depth import often
from tests.faults.proxy import ARRIVE_LATE, BLACK_HOLE, CUT_AFTER, CUT_BEFORE, PASS, delayed
from tests.faults.shells import AsyncioShell, BlockingShell
from tests.faults.stepping import LIBRARY, Cancellation, CtrlC
from tests.faults.workers import Workers, start_program

pytestmark = pytest.mark.topic("Operator tools")


CUTS = [(CUT_BEFORE,), (CUT_AFTER, CUT_AFTER), (PASS, CUT_AFTER, CUT_BEFORE)]
every_cut = pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: ", ".join(map(str, cuts)))


def done(shell, answer):
    """The result of a method, sync or async."""
    return shell.runner.run(answer) if inspect.iscoroutine(answer) else answer


def plain(truth, name="faults", **options):
    """A queue without the proxy."""
    return RedisMessageQueue(name, client=truth.client, message_wait_interval_seconds=0, **options)


def dead_letter(truth, texts, tenant=None):
    """Turn these messages into dead letters, in this order."""
    queue = plain(truth)
    queue.publish_many(texts, tenant=tenant)
    left = len(texts)
    while left:
        with queue.process_messages(1_000) as batch:
            left -= len(batch)
            for message in batch:
                batch.fail(message, ValueError("no such customer"))
    assert truth.client.llen(truth.key.dead_letter) == truth.client.llen(truth.key.records("dlq"))


def handed_off(shell, queue, results, before_settling=lambda: None):
    """Claim a message and hand it off to the results, sync or async."""

    async def awaited():
        async with queue.process_messages(1) as batch:
            before_settling()
            for message in batch:
                await message.complete(publish=[(results, f"of {message.payload.decode()}")])

    if isinstance(shell, AsyncioShell):
        return shell.runner.run(awaited())
    with queue.process_messages(1) as batch:
        before_settling()
        for message in batch:
            message.complete(publish=[(results, f"of {message.payload.decode()}")])
    return None


def results_of(truth):
    return [one.payload for one in plain(truth, "results").peek(1_000)]


def two_queues(shell, **options):
    """The queue under test and the queue of its results, behind the same proxy."""
    client = shell.client()
    queue = shell.queue(client, **options)
    return queue, shell.queue_class("results", client=client)


# Lost requests and replies


@pytest.mark.promise("A redrive whose requests are lost or late republishes each message once.")
@every_cut
def test_a_redrive_publishes_each_dead_letter_once(proxy, truth, shell, cuts):
    """These dead letters are two pages; a repeated page gets its first reply."""
    dead_letter(truth, [str(number) for number in range(520)])
    queue = shell.queue()
    proxy.meet("redrive", *cuts)
    summary = done(shell, queue.redrive_dead_letters(where=lambda letter: int(letter.payload) % 4 > 0))
    assert (summary.matched, summary.redriven, summary.suppressed) == (390, 390, 0)
    waiting = [int(one.payload) for one in plain(truth).peek(2_000)]
    assert waiting == [number for number in range(520) if number % 4]
    assert [int(one) for one in truth.dead] == list(range(0, 520, 4))
    assert all(one.id for one in plain(truth).records(max_records=400))


@pytest.mark.promise(
    "A hand-off that is retried after a lost reply takes effect once, and one that arrives late publishes nothing."
)
@every_cut
def test_a_hand_off_happens_once(proxy, truth, shell, cuts):
    """The message is gone and its result is there, whichever requests and replies are lost."""
    queue, results = two_queues(shell, enable_completed_queue=True)
    for letter in "ab":
        shell.publish(queue, letter)
    proxy.meet("hand_off", *cuts)
    for _ in range(2):
        handed_off(shell, queue, results)
    assert results_of(truth) == [b"of a", b"of b"]
    assert truth.completed == [b"a", b"b"]
    assert truth.is_empty


@pytest.mark.promise(
    "With lost requests and replies, a purge still removes everything; only its count can miss a step."
)
@every_cut
def test_a_purge_removes_everything(proxy, truth, shell, cuts):
    """Only its count may miss a step with a lost reply; it removes nothing else."""
    plain(truth).publish_many(["m"] * 2_500)
    plain(truth).publish_many(["m"] * 10, tenant="t")
    plain(truth).publish("later", delay_seconds=100)
    with pytest.raises(LookupError), plain(truth, enable_failed_queue=True).process_message():
        raise LookupError
    queue = shell.queue()
    proxy.meet("sweep", *cuts)
    assert 2_509 - 1_000 * len(cuts) <= done(shell, queue.purge("pending")) <= 2_509
    stats = plain(truth).stats()
    assert (stats.pending, stats.tenants, stats.processing, stats.delayed, stats.failed) == (0, 0, 0, 1, 1)
    proxy.meet("sweep", *cuts)
    assert done(shell, queue.purge("delayed")) <= 1
    assert truth.is_empty
    proxy.meet("UNLINK", *cuts)
    assert done(shell, queue.purge("failed")) <= 1
    assert truth.failed == []


@pytest.mark.promise("Reads of operator tools are retried after a lost reply.")
@every_cut
def test_reads_are_repeated(proxy, truth, shell, cuts):
    """stats, peek, records and tenants return the current state."""
    plain(truth).publish_many(["a", "b"], tenant="t")
    queue = shell.queue()
    for name in ("stats", "LRANGE", "ZRANGE"):
        proxy.meet(name, *cuts)
    assert done(shell, queue.stats()).pending == 2
    assert [one.payload for one in done(shell, queue.peek())] == [b"a", b"b"]
    assert done(shell, queue.tenants()) == {"t": 2}
    assert done(shell, queue.records()) == []


@pytest.mark.promise("The queue survives a server that restarts, crashes, freezes or loses its cached scripts.")
def test_scripts_that_the_server_lost_are_sent_again(proxy, truth, shell):
    """All operator calls and the hand-off work after SCRIPT FLUSH."""
    dead_letter(truth, ["dead"])
    queue, results = two_queues(shell)
    for work in (
        lambda: done(shell, queue.stats()),
        lambda: done(shell, queue.redrive_dead_letters()),
        lambda: handed_off(shell, queue, results),
        lambda: done(shell, queue.purge("pending")),
    ):
        truth.client.script_flush()
        work()
    assert results_of(truth) == [b"of dead"]
    assert truth.is_empty


# Late requests


@pytest.mark.promise("A redrive whose requests are lost or late republishes each message once.")
def test_a_late_redrive_redrives_nothing(proxy, truth, shell):
    """Neither the dead letters of its repetition nor those that came later."""
    dead_letter(truth, ["old"])
    queue = shell.queue()
    proxy.meet("redrive", ARRIVE_LATE)
    assert done(shell, queue.redrive_dead_letters()).redriven == 1
    assert shell.process(queue) == b"old"
    dead_letter(truth, ["old"])
    proxy.send_late_requests()
    assert (truth.pending, truth.dead) == (0, [b"old"])


@pytest.mark.promise(
    "A hand-off that is retried after a lost reply takes effect once, and one that arrives late publishes nothing."
)
def test_a_late_hand_off_publishes_nothing(proxy, truth, shell):
    """After its repetition it is the same call; after its message was reclaimed it is refused."""
    queue, results = two_queues(shell)
    shell.publish(queue, "a")
    proxy.meet("hand_off", ARRIVE_LATE)
    handed_off(shell, queue, results)
    proxy.send_late_requests()
    assert results_of(truth) == [b"of a"]

    hasty, results = two_queues(shell, gateway={"retry_budget_seconds": 0})
    shell.publish(hasty, "b")
    proxy.meet("hand_off", ARRIVE_LATE)
    with pytest.raises(CleanupFailedError):
        handed_off(shell, hasty, results)
    # The message was requeued. Another consumer claims it, and then the hand-off arrives.
    with plain(truth).process_message() as message:
        assert message == b"b"
        proxy.send_late_requests()
    assert results_of(truth) == [b"of a"]
    assert truth.is_empty


@pytest.mark.promise("A purge ends while others publish, and removes nothing that was published after it began.")
@pytest.mark.parametrize("target", ["pending", "delayed", "dead_letters"])
def test_a_late_purge_removes_nothing_new(proxy, truth, shell, target):
    """Messages that came after the purge stay."""

    def fill(text):
        if target == "dead_letters":
            dead_letter(truth, [text])
        else:
            plain(truth).publish(text, delay_seconds=100 if target == "delayed" else None)

    fill("old")
    queue = shell.queue()
    for name in ("sweep", "UNLINK"):
        proxy.meet(name, ARRIVE_LATE)
    assert done(shell, queue.purge(target)) <= 1
    proxy.relent()
    fill("new")
    proxy.send_late_requests()
    assert [one.payload for one in plain(truth).peek(source=target)] == [b"new"]


# Interruptions


@pytest.mark.promise("A cancelled or interrupted hand-off happens once or not at all.")
def test_a_cancelled_hand_off_happens_once_or_not_at_all(proxy, truth):
    """At each of its awaits: the cancellation is raised, and the message is gone or still in flight."""
    proxy.always("EVALSHA", delayed(0.003))  # so that no reply is there before it is awaited
    shell = AsyncioShell(proxy.port, redis.asyncio.Redis)

    async def hand_off(queue, results, cancellation):
        async with queue.process_messages(1) as batch:
            await cancellation.of(batch[0].complete(publish=[(results, "r")]))

    async def cancel_everywhere():
        awaits, outcomes = 0, Counter()
        while True:
            awaits += 1
            queue, results = two_queues(shell)
            plain(truth).publish("m")
            cancellation = Cancellation(awaits)
            task = asyncio.ensure_future(hand_off(queue, results, cancellation))
            await asyncio.wait({task})
            assert task.cancelled() == cancellation.came
            outcome = (truth.processing, len(results_of(truth)))
            outcomes[outcome] += 1
            truth.clear()
            if not cancellation.came:
                return outcomes

    try:
        outcomes = shell.runner.run(cancel_everywhere())
    finally:
        shell.close()
    assert set(outcomes) <= {(0, 1), (1, 0)}
    assert outcomes[0, 1] >= 2


@pytest.mark.promise("A cancelled or interrupted hand-off happens once or not at all.")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_interrupted_hand_off_happens_once_or_not_at_all(server, truth):
    """At every other moment inside the library; the next hand-off on the same objects works."""
    shell = BlockingShell(server.port, redis.Redis)
    queue, results = two_queues(shell)
    moment, came, outcomes, total = 0, True, Counter(), 0
    while came:
        moment += 2
        queue.publish("m")
        with contextlib.suppress(KeyboardInterrupt), queue.process_messages(1) as batch:
            interruption = CtrlC(moment, LIBRARY)
            with contextlib.suppress(KeyboardInterrupt), interruption:
                batch[0].complete(publish=[(results, "r")])
            came = interruption.came
            raise KeyboardInterrupt
        before, total = total, truth.client.llen(results.key.pending)
        outcomes[truth.processing, total - before] += 1
        truth.client.delete(truth.key.processing, truth.key.leases, truth.key.deliveries)
        queue.publish("next")
        handed_off(shell, queue, results)
        total += 1
        assert (truth.is_empty, truth.client.llen(results.key.pending)) == (True, total)
    shell.close()
    assert moment > 20
    assert set(outcomes) == {(0, 1), (1, 0)}
    assert Counter(results_of(truth)) == {b"r": outcomes[0, 1], b"of next": moment // 2}


# SIGKILL


@pytest.mark.promise("Workers killed with SIGKILL lose and duplicate no result.")
def test_killing_workers_duplicates_and_loses_no_result(server, truth):
    """Two workers, four kills: an atomic hand-off means one result for each message."""
    chance = random.Random(11)
    expected = [b"%d" % number for number in range(120)]
    with Workers("killed_operator.py", *[(server.port, "hand off")] * 2) as workers:
        until(lambda: truth.client.scard("ready") >= 2)
        queue = plain(truth)
        for number, message in enumerate(expected):
            queue.publish(message.decode())
            if number % 30 == 0:
                time.sleep(chance.random() * 0.03)
                workers.kill(chance.randrange(2))
        until(lambda: truth.is_empty)
        truth.client.set("stop", 1)
        assert workers.failures() == []
    assert sorted(results_of(truth)) == sorted(expected)


# The fate of a step whose operator is killed: it never arrives, or it is executed and its reply is lost. Later requests
# get no reply either, so the operator is still in the middle of the work when it is killed.
STEPS = {"its step never arrives": (BLACK_HOLE,), "its step was done": (CUT_AFTER, BLACK_HOLE)}


def every_step(usually):
    """Both steps in `make full`, otherwise this one."""
    marks = {step: () if step == usually else pytest.mark.in_full for step in STEPS}
    return pytest.mark.parametrize("last", [pytest.param(STEPS[step], id=step, marks=marks[step]) for step in STEPS])


def kill_in_the_middle(proxy, verb, script, before, last):
    """Let an operator do some steps, and kill it while it waits for the reply to its last request."""
    proxy.meet(script, *[PASS] * before, *last)
    with start_program("killed_operator.py", proxy.port, verb) as victim:
        try:
            until(lambda: proxy.seen[script] == before + len(last) or victim.poll() is not None)
            assert victim.poll() is None, victim.stderr.read()
        finally:
            victim.kill()
        out, complaints = victim.communicate(timeout=LIMIT_SECONDS)
        assert (out, b"Traceback" in complaints) == (b"", False)
    assert victim.returncode == -signal.SIGKILL
    assert proxy.seen[script] == before + len(last)
    return before + last.count(CUT_AFTER)


@pytest.mark.promise("A killed redrive has moved whole pages, and the next redrive continues.")
@every_step("its step was done")
def test_a_killed_redrive_has_published_whole_pages(proxy, truth, last):
    """Each letter is dead or waiting, with its record or its `replay_of`; the next redrive does the rest."""
    dead_letter(truth, [str(number) for number in range(1_100)])
    ids = {one.payload: one.id for one in plain(truth).records(max_records=1_100)}
    pages = kill_in_the_middle(proxy, "redrive", "redrive", 1, last)
    waiting = {one.payload: one.replay_of for one in plain(truth).peek(1_100)}
    assert sorted(map(int, waiting)) == list(range(0, 500 * pages, 2))
    assert len(waiting) == truth.pending
    assert sorted([*waiting, *truth.dead]) == sorted(ids)
    assert len(truth.dead) == truth.client.llen(truth.key.records("dlq"))
    assert all(ids[payload] == replayed for payload, replayed in waiting.items())
    summary = plain(truth).redrive_dead_letters(where=lambda letter: int(letter.payload) % 2 == 0)
    assert summary.redriven == 550 - len(waiting)
    assert sorted(map(int, truth.dead)) == list(range(1, 1_100, 2))


@pytest.mark.promise("A killed purge leaves a consistent queue.")
@every_step("its step never arrives")
def test_a_killed_purge_leaves_a_consistent_queue(proxy, truth, last):
    """The rest is counted, claimed and purged as usual."""
    queue = plain(truth)
    for tenant in (None, *"abcdefgh"):
        queue.publish_many(["m"] * 3_000, tenant=tenant)
    steps = kill_in_the_middle(proxy, "purge", "sweep", 13, last)
    stats = queue.stats()
    assert stats.pending == 27_000 - 1_000 * steps
    assert stats.pending == truth.pending + sum(queue.tenants().values())
    assert stats.tenants == len(queue.tenants())
    with queue.process_message() as message:
        assert message == b"m"
    assert queue.purge("pending") == stats.pending - 1
    assert truth.is_empty
    assert queue.stats().pending == 0


# A live queue


class Mourner:
    """A consumer of a queue that operators redrive: new messages die, redriven ones succeed."""

    def __init__(self, truth, **options):
        policy = RetryPolicy(max_attempts=1)
        self.queue = plain(truth, retry_policy=policy, **options)
        self.born = {}  # payload to id
        self.done = []  # payload, tenant and the id that it repeats
        self.stopped = False

    def work(self):
        while True:
            is_last = self.stopped  # before the claim: what was redriven until then is handled
            with self.queue.process_messages(50) as batch:
                if not batch and is_last:
                    return
                for message in batch:
                    if message.replay_of is None:
                        self.born[message.payload] = message.id
                        batch.fail(message, ValueError("dies"))
                    else:
                        self.done.append((message.payload, message.tenant, message.replay_of))


def is_chosen(letter):
    return int(letter.payload) % 3 > 0


@pytest.mark.promise("A redrive republishes each message once and unchanged, even if the list changes meanwhile.")
@pytest.mark.parametrize("limit", [None, 50], ids=["every letter is kept", "old letters are trimmed"])
def test_a_redrive_on_a_live_queue_redrives_each_letter_once(server, truth, limit):
    """While letters arrive, are trimmed and are redriven by another operator: each is redriven once or stays dead."""
    numbers = range(often(420, 900))
    mourner = Mourner(truth, max_dead_letter_length=limit)

    def publish():
        with server.client() as client:
            queue = RedisMessageQueue("faults", client=client)
            for at in range(0, len(numbers), 3):
                # The same tenant for a whole chunk, and unique payloads.
                queue.publish_many([str(number) for number in numbers[at : at + 3]], tenant=f"t{at % 5}")

    def redrive(publishing):
        with server.client() as client:
            queue = RedisMessageQueue("faults", client=client)
            while not publishing.done():
                queue.redrive_dead_letters(where=is_chosen)

    with beside(mourner.work) as working:
        try:
            publishing = start(publish)
            for operator in [start(redrive, publishing) for _ in range(2)]:
                operator.result(LIMIT_SECONDS)
            publishing.result(LIMIT_SECONDS)
            until(lambda: len(mourner.born) == len(numbers) or working.done())
            until(lambda: truth.is_empty or working.done())
            plain(truth).redrive_dead_letters(where=is_chosen)
        finally:
            mourner.stopped = True
    back = Counter(int(payload) for payload, _, _ in mourner.done)
    dead = Counter(int(payload) for payload in truth.dead)
    assert set(back.values()) == set(dead.values()) == {1}
    assert all(mourner.born[payload] == replayed for payload, _, replayed in mourner.done)
    assert all(tenant == f"t{int(payload) // 3 * 3 % 5}" for payload, tenant, _ in mourner.done)
    assert set(dead) == set(numbers[::3]) if limit is None else set(dead) <= set(numbers[::3])
    assert set(back) == {number for number in numbers if number % 3} if limit is None else not set(back) & set(dead)
    assert truth.client.llen(truth.key.records("dlq")) == len(truth.dead)


@pytest.mark.promise("A purge ends while others publish, and removes nothing that was published after it began.")
def test_a_purge_ends_while_others_publish(server, truth):
    """It removes the messages that were there when it was called, and no later ones."""
    stopped = []

    def publish():
        with server.client() as client:
            queue, count = RedisMessageQueue("faults", client=client), 0
            while not stopped:
                queue.publish("m", tenant=f"t{count % 7}")
                count += 1

    publishers = [start(publish) for _ in range(3)]
    try:
        until(lambda: plain(truth).stats().tenants == 7)
        assert start(plain(truth).purge, "pending").result(LIMIT_SECONDS / 3) > 0
    finally:
        stopped.append(True)
        for publisher in publishers:
            publisher.result(LIMIT_SECONDS)
    plain(truth).purge("pending")
    assert truth.is_empty


@pytest.mark.promise(
    "Deleting a tenant queue of any length leaves running and delayed messages, and the turns of other tenants, alone."
)
def test_deleting_tenant_queues_in_use_keeps_them_consistent(server, truth):
    """While others publish, consume and delete, nothing wrong is left in the ring of tenants."""
    expected, handled, stopped = often(400, 900), [], []

    def publish():
        with server.client() as client:
            queue = RedisMessageQueue("faults", client=client)
            for number in range(expected):
                queue.publish(str(number), tenant=f"t{number % 3}")

    def consume():
        with server.client() as client:
            queue = RedisMessageQueue("faults", client=client, message_wait_interval_seconds=0)
            while True:
                with queue.process_messages(3) as batch:
                    handled.extend(message.payload for message in batch)
                    if not batch and stopped:
                        return

    consuming, publishing = start(consume), start(publish)
    deleted = 0
    while not publishing.done():
        for tenant in ("t0", "t1", "t2"):
            deleted += plain(truth).tenant(tenant).delete()
            time.sleep(0.002)
    stopped.append(True)
    publishing.result(LIMIT_SECONDS)
    consuming.result(LIMIT_SECONDS)
    assert len(handled) + deleted == expected
    assert len(set(handled)) == len(handled)
    leftovers = (
        truth.key.tenant_ring,
        truth.key.tenant_backlog,
        *(truth.key.tenant_pending(f"t{number}") for number in range(3)),
    )
    assert truth.is_empty
    assert truth.client.exists(*leftovers) == 0


@pytest.mark.promise("A hand-off without a valid lease publishes nothing and raises `LeaseLostError`.")
def test_only_one_of_two_holders_hands_off(proxy, truth, shell):
    """If a message is reclaimed while its hand-off is under way, only the results of the new holder are published."""
    queue, results = two_queues(shell)
    shell.publish(queue, "m")

    def take_over():
        truth.end_leases()
        with plain(truth).process_messages(1) as batch:
            batch[0].complete(publish=[(plain(truth, "results"), "of the new holder")])

    with pytest.raises(LeaseLostError):
        handed_off(shell, queue, results, before_settling=take_over)
    assert results_of(truth) == [b"of the new holder"]
    assert truth.is_empty
