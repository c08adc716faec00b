"""`rmq redrive` publishes dead letters again: all of them, by a condition, or by id."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture
def queue(text_client) -> RedisMessageQueue:
    """Three dead letters, the first of them for a tenant."""
    made = RedisMessageQueue(
        "orders",
        client=text_client,
        visibility_timeout_seconds=0.02,
        max_delivery_count=1,
        message_wait_interval_seconds=0,
    )
    made.publish("one", tenant="acme")
    made.publish_many(["two", "three"])
    made.process_messages(3).__enter__()  # a consumer that crashes

    def all_dead() -> bool:
        with made.process_message() as message:
            assert message is None
        return made.stats().dead_letters == 3

    assert until(all_dead)
    return made


def test_all_dead_letters_go_back(rmq, queue):
    ended = rmq("redrive", "orders", "--json")
    assert ended.documents == [{"matched": 3, "redriven": 3, "suppressed": 0}]
    assert (queue.stats().pending, queue.stats().dead_letters) == (3, 0)


@pytest.mark.promise(
    "`rmq redrive` selects by condition, ids and limit; a dry run shows what would move and changes nothing."
)
def test_a_condition_chooses(rmq, queue):
    ended = rmq("redrive", "orders", "--where", "tenant == 'acme' or payload.startswith('th')")
    assert ended.status == ExitStatus.OK
    assert "redriven    2" in ended.out
    assert [record.payload for record in queue.records()] == ["two"]


@pytest.mark.promise(
    "`rmq redrive` selects by condition, ids and limit; a dry run shows what would move and changes nothing."
)
def test_a_limit_takes_the_oldest(rmq, queue):
    oldest = queue.records()[-1].payload
    rmq("redrive", "orders", "--limit", "1")
    assert [message.payload for message in queue.peek()] == [oldest]


@pytest.mark.promise(
    "`rmq redrive` selects by condition, ids and limit; a dry run shows what would move and changes nothing."
)
def test_ids_choose_and_one_that_is_not_there_is_told(rmq, queue):
    wanted = queue.records()[0]
    ended = rmq("redrive", "orders", "--ids", f"{wanted.id},{'f' * 32}", "--json")
    assert ended.status == ExitStatus.FAILED
    assert ended.documents[0]["redriven"] == 1
    assert "f" * 32 in ended.err
    assert wanted.id not in ended.err
    assert [message.replay_of for message in queue.peek()] == [wanted.id]


def test_ids_may_be_given_again_and_in_capitals(rmq, queue):
    first, second, _ = queue.records()
    ended = rmq("redrive", "orders", "--ids", first.id.upper(), "--ids", f"{second.id}, {first.id}")
    assert ended.status == ExitStatus.OK
    assert queue.stats().pending == 2


@pytest.mark.promise(
    "`redrive_failed()` republishes the failed list as `redrive_dead_letters()` republishes dead letters."
)
def test_failed_messages_go_back_by_choice(rmq, queue, text_client):
    """And the dead letters stay."""
    failing = RedisMessageQueue("orders", client=text_client, enable_failed_queue=True)
    for number in range(2):
        failing.publish(f"failing {number}")
        with pytest.raises(ValueError, match=str(number)), failing.process_message():
            raise ValueError(f"for reason {number}")
    kept, wanted = queue.records("failed")
    ended = rmq("redrive", "orders", "--from", "failed", "--where", "error == 'for reason 0'", "--json")
    assert ended.documents == [{"matched": 1, "redriven": 1, "suppressed": 0}]
    assert [message.replay_of for message in queue.peek()] == [wanted.id]
    assert [record.id for record in queue.records("failed")] == [kept.id]
    assert queue.stats().dead_letters == 3
    missing = rmq("redrive", "orders", "--from", "failed", "--ids", queue.records()[0].id)
    assert missing.status == ExitStatus.FAILED
    assert "failed messages" in missing.err
    assert rmq("redrive", "orders", "--from", "completed").status == ExitStatus.USAGE


@pytest.mark.promise(
    "`rmq redrive` selects by condition, ids and limit; a dry run shows what would move and changes nothing."
)
def test_a_dry_run_shows_what_would_go_and_changes_nothing(rmq, queue):
    ended = rmq("redrive", "orders", "--dry-run", "--where", "tenant is None")
    assert "two" in ended.out
    assert "three" in ended.out
    assert "one" not in ended.out
    assert ended.err == "2 would be redriven; nothing was changed\n"
    assert queue.stats().dead_letters == 3
    rows = rmq("redrive", "orders", "--dry-run", "--json", "--no-payload").documents
    assert {row["id"] for row in rows} == {record.id for record in queue.records()}
    assert all("payload" not in row for row in rows)


def test_a_long_dry_run_shows_the_oldest_hundred_and_says_how_many_more(rmq, text_client):
    text_client.lpush("orders::dlq", *[f"letter {number:03}" for number in range(150)])
    ended = rmq("redrive", "orders", "--dry-run")
    assert "letter 000" in ended.out
    assert "letter 099" in ended.out
    assert "letter 100" not in ended.out
    assert ended.err == "and 50 more; 150 would be redriven; nothing was changed\n"


def test_a_letter_whose_content_was_published_again_can_stay(rmq, queue, text_client):
    RedisMessageQueue("orders", client=text_client, deduplication=True).publish("two")
    ended = rmq("redrive", "orders", "--respect-deduplication", "--json")
    assert ended.documents == [{"matched": 3, "redriven": 2, "suppressed": 1}]


@pytest.mark.parametrize("wrong", ["12", "g" * 32, "", "0" * 33])
def test_what_is_no_id_is_refused(rmq, wrong):
    ended = rmq("redrive", "orders", "--ids", wrong)
    assert ended.status == ExitStatus.USAGE
    assert "32 hexadecimal digits" in ended.err


@pytest.mark.promise(
    "A condition of `rmq redrive` is never run as Python, and an invalid one is refused before any change."
)
def test_a_wrong_condition_is_refused_before_anything_is_changed(rmq, queue):
    ended = rmq("redrive", "orders", "--where", "tenant = 'acme'")
    assert ended.status == ExitStatus.USAGE
    assert "--where" in ended.err
    assert queue.stats().dead_letters == 3


@pytest.mark.promise("`--where` says how many values it could not compare, because they were of another type.")
@pytest.mark.parametrize(
    ("command", "where", "said"),
    [
        (
            "redrive orders --dry-run",
            "json['total'] < 0",
            "3 values of json['total'] were text and could not be compared",
        ),
        ("records orders", "json['n'] == 1 and not json['total'] > 5", ""),
        ("records orders", "0 < json['total']", "3 values of json['total'] were text and could not be compared"),
        ("peek orders", "json['total'] < 'a'", "1 value of json['total'] was a number and could not be compared"),
        ("records orders", "json['none'] < 0", ""),
    ],
)
def test_values_that_cannot_be_compared_are_counted(rmq, text_client, command, where, said):
    made = RedisMessageQueue("orders", client=text_client)
    made.publish({"total": 7})
    for total in ("-1", "-2", "-3"):
        text_client.lpush(made.key.dead_letter, f'{{"total": "{total}", "n": 1}}')
    text_client.lpush(made.key.dead_letter, '{"total": null}', "no JSON")
    ended = rmq(*command.split(), "--where", where)
    assert ended.status == ExitStatus.OK
    assert said in ended.err
    assert ("could not be compared" in ended.err) == bool(said)
