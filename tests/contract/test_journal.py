"""A queue with a journal: what it records, for which queue objects, and that it agrees with what happened."""

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from redis_message_queue import ConfigurationError, RetryPolicy
from tests.contract.loops import text
from tests.contract.shells import Awaited, Shell, fail, take
from tests.tables import row

pytestmark = pytest.mark.topic("Journal")


def told(shell: Shell, queue: Any) -> list[dict[str, str]]:
    """The entries of a journal, the oldest first."""
    entries = shell.redis.xrange(queue.key.journal)
    return [{name.decode(): value.decode() for name, value in entry.items()} for _, entry in entries]


def events(shell: Shell, queue: Any) -> list[str]:
    return [entry["event"] for entry in told(shell, queue)]


@pytest.mark.promise("A queue has a journal only if one object asks for it; then every object of the queue writes it.")
async def test_a_queue_has_no_journal_by_default(shell: Shell) -> None:
    """Not a key of it."""
    queue = shell.queue(wait=0)
    await queue.publish("a")
    await take(queue)
    assert not shell.redis.exists(queue.key.journal)
    assert not shell.redis.hexists(queue.key.meta, "journal")


@pytest.mark.promise("Each state change of a message is a journal entry, written by the script that makes the change.")
async def test_a_journal_records_the_whole_life_of_a_message(shell: Shell) -> None:
    """From the publish to the ack, under one id."""
    queue = shell.queue(wait=0, journal=True)
    await queue.publish("a")
    await take(queue)
    assert events(shell, queue) == ["published", "claimed", "acked"]
    assert len({entry["id"] for entry in told(shell, queue)}) == 1


@pytest.mark.promise("A queue has a journal only if one object asks for it; then every object of the queue writes it.")
async def test_everybody_writes_the_journal_of_a_queue(shell: Shell) -> None:
    """Also an object that never heard of it."""
    await shell.queue(wait=0, journal=True).publish("a")
    other = shell.queue(wait=0)
    await other.publish("b")
    await take(other)
    assert events(shell, other) == ["published", "published", "claimed", "acked"]


@pytest.mark.promise("A queue has a journal only if one object asks for it; then every object of the queue writes it.")
async def test_a_journal_begins_with_the_first_call_that_enables_it(shell: Shell) -> None:
    """Also if that is a consumer; what lay there before is told from its claim on."""
    await shell.queue(wait=0).publish("a")
    queue = shell.queue(wait=0, journal=True)
    await take(queue)
    assert events(shell, queue) == ["claimed", "acked"]


@pytest.mark.promise('The journal contains payloads only with `journal="payload"`.')
async def test_payloads_are_in_the_journal_only_on_request(shell: Shell) -> None:
    """They may be private."""
    queue = shell.queue("with", wait=0, journal="payload")
    await queue.publish("a")
    await queue.publish("b", tenant="acme")
    await queue.publish_many(["c", "d"])
    assert [entry.get("payload") for entry in told(shell, queue)] == ["a", "b", "c", "d"]
    queue = shell.queue("without", wait=0, journal=True)
    await queue.publish("a")
    assert "payload" not in told(shell, queue)[0]


@pytest.mark.promise("Each state change of a message is a journal entry, written by the script that makes the change.")
async def test_duplicates_delays_and_tenants_are_in_the_journal(shell: Shell) -> None:
    """In the order in which they came."""
    queue = shell.queue(wait=0, journal=True, deduplication=True)
    await queue.publish("a")
    await queue.publish("a")
    await queue.publish("b", tenant="acme", delay_seconds=60)
    assert events(shell, queue) == ["published", "duplicate", "published", "delayed"]
    assert [entry["tenant"] for entry in told(shell, queue)] == ["", "", "acme", "acme"]


@pytest.mark.promise("The journal records the type of an error but never its text.")
async def test_failures_and_retries_are_in_the_journal_with_the_type_of_the_error(shell: Shell) -> None:
    """And never with its words."""
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0.001, jitter=0)
    queue = shell.queue(wait=5, journal=True, retry_policy=policy)
    await queue.publish("a")
    for _ in range(2):
        await fail(queue, ValueError("secret"))
    assert events(shell, queue) == ["published", "claimed", "retried", "claimed", "dead"]
    assert [entry.get("error_type") for entry in told(shell, queue)] == [None, None, "ValueError", None, "ValueError"]
    assert "secret" not in str(told(shell, queue))


@pytest.mark.promise("The journal records the type of an error but never its text.")
async def test_a_failure_is_in_the_journal_even_if_the_message_is_removed(shell: Shell) -> None:
    """Without a failed list it is gone, and the journal is what knows of it."""
    queue = shell.queue(wait=0, journal=True)
    await queue.publish("a")
    await fail(queue, KeyError())
    assert told(shell, queue)[-1]["event"] == "failed"
    assert told(shell, queue)[-1]["error_type"] == "KeyError"


@pytest.mark.promise("The journal records what operators remove or redrive, with counts and lineage.")
async def test_operator_actions_are_in_the_journal(shell: Shell) -> None:
    """With counts, targets and lineage."""
    queue = shell.queue(wait=0, journal=True, retry_policy=RetryPolicy(max_attempts=1))
    await queue.publish("a")
    await fail(queue, ValueError())
    await Awaited(queue).redrive_dead_letters()
    await queue.publish("b", tenant="acme")
    await Awaited(queue.queue.tenant("acme")).delete()
    await Awaited(queue).purge("pending")
    entries = told(shell, queue)
    assert [entry["event"] for entry in entries][-4:] == ["redriven", "published", "deleted", "purged"]
    assert entries[-4]["replay_of"] == entries[0]["id"]
    assert [(entry["count"], entry["target"], entry["tenant"]) for entry in entries[-2:]] == [
        ("1", "pending", "acme"),
        ("1", "pending", ""),
    ]


@pytest.mark.promise("A hand-off is in the journals of both queues.")
async def test_a_hand_off_is_in_both_journals(shell: Shell) -> None:
    """Leaving here, entering there."""
    queue, results = shell.queue(wait=0, journal=True), shell.queue("results", wait=0, journal=True)
    await queue.publish("a")
    async with queue.process_messages(1) as batch:
        await Awaited(batch[0]).complete(publish=[(results.queue, "b")])
    assert events(shell, queue) == ["published", "claimed", "handed_off"]
    assert events(shell, results) == ["published"]


@pytest.mark.promise("Each state change of a message is a journal entry, written by the script that makes the change.")
async def test_batches_and_loops_are_in_the_journal_message_by_message(shell: Shell) -> None:
    """As often as there were messages."""
    queue = shell.queue(wait=0, journal=True)
    await queue.publish_many([str(number) for number in range(50)])
    await queue.run(lambda message: None, prefetch=20, until_empty=True)
    assert Counter(events(shell, queue)) == {"published": 50, "claimed": 50, "acked": 50}
    assert [int(entry["n"]) for entry in told(shell, queue)] == list(range(1, 151))


def _assert_time_apart(entry: dict[str, str], claimed: dict[str, str], least: float) -> None:
    """The handler started after its claim, ran at least so many seconds, and ended before it was settled."""
    started, handled = int(entry["started"]), int(entry["handled"])
    assert handled >= least * 1_000_000
    assert started + handled <= int(entry["at"]) + 1_000  # the clocks of client and server have their own pace
    assert started >= int(claimed["at"]) - 1_000


@pytest.mark.promise("A loop on a queue object with `journal=` notes when each handler started and how long it ran.")
async def test_a_loop_notes_how_long_each_handler_ran(shell: Shell) -> None:
    """Apart from the time in which a message was claimed ahead, and in which its ack waited for the next claim."""
    queue = shell.queue(wait=0, journal=True)
    await queue.publish_many([str(number) for number in range(5)])
    await queue.run(lambda message: time.sleep(0.02), prefetch=5, until_empty=True)
    entries = told(shell, queue)
    acked = [entry for entry in entries if entry["event"] == "acked"]
    claims = {entry["id"]: entry for entry in entries if entry["event"] == "claimed"}
    assert len(acked) == 5
    for entry in acked:
        _assert_time_apart(entry, claims[entry["id"]], 0.02)
    last = acked[-1]
    assert int(last["at"]) - int(claims[last["id"]]["at"]) >= 5 * 20_000, "they were claimed together"
    starts = [int(entry["started"]) for entry in acked]
    assert all(later - earlier >= 15_000 for earlier, later in pairwise(starts))


@pytest.mark.promise("A loop on a queue object with `journal=` notes when each handler started and how long it ran.")
async def test_a_loop_notes_how_long_handlers_ran_that_failed_or_handed_off(shell: Shell) -> None:
    policy = RetryPolicy(max_attempts=2, initial_delay_seconds=0.001, jitter=0)
    queue = shell.queue(wait=0, journal=True, retry_policy=policy)
    results = shell.queue("results", wait=0)
    await queue.publish("fails")
    await queue.publish("is handed off")

    async def handle(message: Any) -> None:
        time.sleep(0.02)  # noqa: ASYNC251 - the time of the handler alone, in both shells
        if text(message) == "fails":
            raise ValueError
        await Awaited(message).complete(publish=[(results.queue, "b")])

    await queue.run(shell.handler(handle), prefetch=2, until_empty=True)
    while "dead" not in events(shell, queue):
        await queue.run(shell.handler(handle), until_empty=True)
    claimed: dict[str, dict[str, str]] = {}
    noted = []
    for entry in told(shell, queue):
        if entry["event"] == "claimed":
            claimed[entry["id"]] = entry
        elif entry["event"] in ("retried", "dead", "handed_off"):
            noted.append(entry["event"])
            _assert_time_apart(entry, claimed[entry["id"]], 0.02)
    assert sorted(noted) == ["dead", "handed_off", "retried"]


@pytest.mark.promise("A loop on a queue object with `journal=` notes when each handler started and how long it ran.")
async def test_without_a_loop_or_without_the_option_nothing_is_noted(shell: Shell) -> None:
    """A handler of a single message starts with its claim, and an object without the option does not know."""
    queue = shell.queue(wait=0, journal=True)
    await queue.publish_many(["a", "b"])
    await take(queue)
    await shell.queue(wait=0).run(lambda message: None, until_empty=True)
    assert [entry.keys() & {"started", "handled"} for entry in told(shell, queue)] == [set()] * 6


@pytest.mark.promise("A retried call is in the journal once.")
async def test_a_call_that_is_sent_twice_is_in_the_journal_once(shell: Shell) -> None:
    """Its answer is remembered, and so is what was told."""
    client = shell.lossy_client()
    queue = shell.queue(client=client, wait=0, journal=True)
    client.losses.reply()
    await queue.publish("a")
    client.losses.reply()
    await take(queue)
    assert events(shell, queue) == ["published", "claimed", "acked"]
    assert client.losses.sent >= 5  # two of the three were sent twice


@pytest.mark.promise('`journal` is a bool or `"payload"`, and its length an int.')
def test_a_journal_is_kept_or_not_or_with_payloads(shell: Shell, subtests: pytest.Subtests) -> None:
    """Anything else is refused where the queue is made."""
    for value in ["yes", "payloads", 1, None, b"payload"]:
        with (
            row(subtests, value=value),
            pytest.raises(ConfigurationError, match="journal must be True, False or 'payload'"),
        ):
            shell.queue(journal=value)


@pytest.mark.promise('`journal` is a bool or `"payload"`, and its length an int.')
def test_the_length_of_a_journal_is_a_whole_number_from_one(shell: Shell, subtests: pytest.Subtests) -> None:
    for value in [0, -1, 1.5, True, None]:
        with row(subtests, value=value), pytest.raises((ConfigurationError, TypeError), match="max_journal_length"):
            shell.queue(journal=True, max_journal_length=value)
