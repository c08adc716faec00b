"""`rmq redrive` sends dead letters back: all, some by a condition, some by their ids; a condition can do no harm."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.redrive.condition import condition
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.messages import MessageRecord, moment
from tests.embedded.waiting import until

LETTER = MessageRecord(
    payload='{"customer": {"country": "AT"}, "lines": [1, 2], "paid": false}',
    id="0" * 32,
    tenant="acme",
    delivery_count=3,
    published_at=moment(1_800_000_000),
    error_type="TimeoutError",
    error="a Timeout of the bank",
)


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


def test_a_condition_chooses(rmq, queue):
    ended = rmq("redrive", "orders", "--where", "tenant == 'acme' or payload.startswith('th')")
    assert ended.status == ExitStatus.OK
    assert "redriven    2" in ended.out
    assert [record.payload for record in queue.records()] == ["two"]


def test_a_limit_takes_the_oldest(rmq, queue):
    oldest = queue.records()[-1].payload
    rmq("redrive", "orders", "--limit", "1")
    assert [message.payload for message in queue.peek()] == [oldest]


def test_ids_choose_and_one_that_is_not_there_is_told(rmq, queue):
    wanted = queue.records()[0]
    ended = rmq("redrive", "orders", "--ids", f"{wanted.id},{'f' * 32}", "--json")
    assert ended.status == ExitStatus.NO
    assert ended.documents[0]["redriven"] == 1
    assert "f" * 32 in ended.err
    assert wanted.id not in ended.err
    assert [message.replay_of for message in queue.peek()] == [wanted.id]


def test_ids_may_be_given_again_and_in_capitals(rmq, queue):
    first, second, _ = queue.records()
    ended = rmq("redrive", "orders", "--ids", first.id.upper(), "--ids", f"{second.id}, {first.id}")
    assert ended.status == ExitStatus.OK
    assert queue.stats().pending == 2


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
    assert missing.status == ExitStatus.NO
    assert "failed messages" in missing.err
    assert rmq("redrive", "orders", "--from", "completed").status == ExitStatus.USAGE


def test_a_dry_run_shows_what_would_go_and_changes_nothing(rmq, queue):
    ended = rmq("redrive", "orders", "--dry-run", "--where", "tenant is None")
    assert "two" in ended.out
    assert "three" in ended.out
    assert "one" not in ended.out
    assert ended.err == "2 would go; nothing was changed\n"
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
    assert ended.err == "and 50 more\n150 would go; nothing was changed\n"


def test_a_letter_whose_content_was_published_again_can_stay(rmq, queue, text_client):
    RedisMessageQueue("orders", client=text_client, deduplication=True).publish("two")
    ended = rmq("redrive", "orders", "--respect-deduplication", "--json")
    assert ended.documents == [{"matched": 3, "redriven": 2, "suppressed": 1}]


@pytest.mark.parametrize("wrong", ["12", "g" * 32, "", "0" * 33])
def test_what_is_no_id_is_refused(rmq, wrong):
    ended = rmq("redrive", "orders", "--ids", wrong)
    assert ended.status == ExitStatus.USAGE
    assert "32 hexadecimal digits" in ended.err


def test_a_wrong_condition_is_refused_before_anything_is_changed(rmq, queue):
    ended = rmq("redrive", "orders", "--where", "tenant = 'acme'")
    assert ended.status == ExitStatus.USAGE
    assert "--where" in ended.err
    assert queue.stats().dead_letters == 3


# Conditions


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("tenant == 'acme'", True),
        ("tenant == 'acme' and 'timeout' in error", False),
        ("tenant == 'acme' and 'timeout' in error.lower()", True),
        ("error_type.endswith('Error')", True),
        ("error_type.startswith('Lookup')", False),
        ("tenant in ['acme', 'bolt']", True),
        ("tenant not in ('acme', 'bolt')", False),
        ("1 < delivery_count <= 3", True),
        ("delivery_count > -1", True),
        ("not (delivery_count >= 3)", False),
        ("published_at >= '2027-01-01'", True),
        ("published_at < '2027-01-15T08:00:00+00:00'", False),
        ("'2027-01-15T08:00:01' > published_at", True),
        ("published_at == '2027-01-15T08:00:00Z'", True),
        ("json['customer']['country'] == 'AT'", True),
        ("json['lines'][1] == 2", True),
        ("2 in json['lines']", True),
        ("'customer' in json", True),
        ("json['paid'] == False", True),
        ("json['nowhere']['at'][7] is None", True),
        ("json['lines'] > 1", False),
        ("json['customer']['country'].lower() == 'at'", True),
        ("json['lines'].lower() == 'x'", False),
        ("'country' in payload", True),
    ],
)
def test_a_condition_says_of_a_letter_whether_it_holds(text, holds):
    assert condition(text)(LETTER) is holds


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("error is None", True),
        ("error == None", True),
        ("error != 'x'", True),
        ("error is not None", False),
        ("'x' in error", False),
        ("'x' not in error", True),
        ("delivery_count > 0", False),
        ("not delivery_count > 0", True),
        ("finished_at < '2030-01-01'", False),
        ("error.lower() == 'x'", False),
        ("error.startswith('x')", False),
        ("json['a'] is None", True),
        ("payload is None", True),
    ],
)
@pytest.mark.parametrize("payload", [None, b"\xff"])
def test_what_is_not_known_is_equal_to_none_alone(payload, text, holds):
    assert condition(text)(MessageRecord(payload=payload)) is holds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1 to 10,000 characters"),
        ("   ", "1 to 10,000 characters"),
        ("tenant", "compare it with something"),
        ("'acme'", "compare it with something"),
        ("tenant == 'acme' and error", "error is no condition"),
        ("not tenant", "tenant is no condition"),
        ("custmer == 'x'", "a record has no 'custmer'; it has claimed_at, "),
        ("due_at is None", "a record has no 'due_at'"),
        ("tenant = 'acme'", "cannot be read"),
        ("tenant == 'acme", "cannot be read"),
        ("tenant == 'acme'; 1", "cannot be read"),
        ("delivery_count == '3'", "delivery_count is a number and '3' a text"),
        ("delivery_count > None", "cannot be compared"),
        ("published_at > 'yesterday'", "'yesterday' is no time"),
        ("published_at > error", "error is no time"),
        ("published_at > 5", "cannot be compared"),
        ("3 in error", "3 cannot be in error"),
        ("error in delivery_count", "error cannot be in delivery_count"),
        ("tenant is 'acme'", "`is` goes with None"),
        ("delivery_count.lower() == 'x'", "is for texts"),
        ("error.lower('x') == 'x'", "takes 0 texts"),
        ("error.startswith()", "takes 1 texts"),
        ("tenant['x'] == 1", "only json has parts"),
        ("b'x' == payload", "is no text, number"),
        ("tenant in [error]", "is no text, number"),
        ("tenant in [['a']]", "is no text, number"),
        ("error == 1j", "is no text, number"),
        # What Python could do, and a condition cannot:
        ("__import__('os').system('true') == 0", "is not among what a condition can have"),
        ("error.__class__ == 'x'", "is not among what a condition can have"),
        ("error.format(tenant) == 'x'", "is not among what a condition can have"),
        ("error.lower.__globals__ == 'x'", "is not among what a condition can have"),
        ("json[error] == 'x'", "is not among what a condition can have"),
        ("json['a':'b'] == 'x'", "is not among what a condition can have"),
        ("9 ** 9 ** 9 == delivery_count", "is not among what a condition can have"),
        ("error * 1000000000 == 'x'", "is not among what a condition can have"),
        ("(lambda: 1)() == 1", "is not among what a condition can have"),
        ("[one for one in error] == 'x'", "is not among what a condition can have"),
        ("(tenant := 'x') == 'x'", "is not among what a condition can have"),
        ("f'{error}' == 'x'", "is not among what a condition can have"),
        ("tenant if error else id", "is not among what a condition can have"),
        ("error.startswith(*['x'])", "is not among what a condition can have"),
        ("error.startswith(prefix='x')", "is not among what a condition can have"),
        ("error == 'x' and " * 100 + "error == 'x'", "more than 200 parts"),
        ("not " * 5_000 + "error", ""),
        ("(" * 3_000 + "error" + ")" * 3_000, "cannot be read"),
        ("error == '" + "x" * 10_000 + "'", "1 to 10,000 characters"),
        ("error == 'x\0'", "cannot be read"),
    ],
)
def test_a_condition_that_could_not_be_meant_is_refused(text, told):
    with pytest.raises(ConfigurationError) as refused:
        condition(text)
    assert str(refused.value).startswith("--where: ")
    assert told in str(refused.value)
