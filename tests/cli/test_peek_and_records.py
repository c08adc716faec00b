"""`rmq peek` and `rmq records` show messages unchanged, and no message can control the terminal."""

import base64
import contextlib

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.message_view import shortened
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.topic("Command line")


NASTY = "\x1b[2J\x07\r\n\u202eevil\x9b31m"


@pytest.fixture
def queue(text_client) -> RedisMessageQueue:
    return RedisMessageQueue(
        "orders",
        client=text_client,
        message_wait_interval_seconds=0,
        enable_failed_queue=True,
        enable_completed_queue=True,
    )


def fail(queue: RedisMessageQueue, error: str) -> None:
    with contextlib.suppress(LookupError), queue.process_message():
        raise LookupError(error)


def test_pending_messages_come_in_the_order_of_their_delivery(rmq, queue):
    queue.publish_many(["one", "two", "three"])
    rows = rmq("peek", "orders", "--limit", "2", "--json").documents
    assert [row["payload"] for row in rows] == ["one", "two"]
    assert queue.stats().pending == 3


def test_a_tenants_line_can_be_looked_at_alone(rmq, queue):
    queue.publish("for acme", tenant="acme")
    queue.publish("for all")
    (row,) = rmq("peek", "orders", "--tenant", "acme", "--json").documents
    assert (row["payload"], row["tenant"]) == ("for acme", "acme")


def test_what_is_in_processing_and_what_is_delayed_can_be_looked_at(rmq, queue):
    queue.publish("now")
    queue.publish("later", delay_seconds=3600)
    with queue.process_message():
        assert [row["payload"] for row in rmq("peek", "orders", "processing", "--json").documents] == ["now"]
    (later,) = rmq("peek", "orders", "delayed", "--json").documents
    assert later["payload"] == "later"
    assert later["due_at"] > later["published_at"]


@pytest.mark.promise(
    "`rmq peek` and `rmq records` shorten payloads in tables, show them whole in JSON, and hide them on request."
)
def test_a_table_shortens_a_payload_and_json_does_not(rmq, queue):
    queue.publish("x" * 5000)
    table = rmq("peek", "orders").out
    assert "x" * 40 in table
    assert "x" * 100 not in table
    assert "…" in table
    assert rmq("peek", "orders", "--json").documents[0]["payload"] == "x" * 5000


@pytest.mark.promise(
    "`rmq peek` and `rmq records` shorten payloads in tables, show them whole in JSON, and hide them on request."
)
def test_without_payload_there_is_none(rmq, queue):
    queue.publish("secret")
    assert "secret" not in rmq("peek", "orders", "--no-payload").out
    assert "payload" not in rmq("peek", "orders", "--no-payload", "--json").documents[0]


def test_an_empty_place_says_where_messages_are(rmq, queue):
    assert rmq("peek", "orders").err == "no message is pending\n"
    queue.publish("later", delay_seconds=60)
    queue.publish("one")
    with queue.process_message():
        assert rmq("peek", "orders").err == "no message is pending; 1 in flight, 1 delayed\n"
    assert rmq("peek", "orders", "processing").err == "no message is in flight; 1 delayed\n"
    assert rmq("peek", "orders", "processing", "--json").err == ""


@pytest.mark.promise(
    "`rmq peek` and `rmq records` shorten payloads in tables, show them whole in JSON, and hide them on request."
)
def test_a_record_tells_what_became_of_a_message(rmq, queue):
    queue.publish("one")
    fail(queue, "no such customer")
    (row,) = rmq("records", "orders", "failed", "--json").documents
    assert (row["payload"], row["error_type"], row["error"]) == ("one", "LookupError", "no such customer")
    assert "in fail\n" in row["traceback"]
    table = rmq("records", "orders", "failed").out
    assert "no such customer" in table and table.endswith(f"\n{row['traceback']}\n")
    assert "due at" not in table, "what is known of no row takes no room"


def test_records_are_of_the_dead_letters_unless_another_list_is_named(rmq, queue, text_client):
    text_client.lpush(queue.key.dead_letter, "dead")
    assert rmq("records", "orders", "--json").documents[0]["payload"] == "dead"
    with queue.process_message():
        pass
    assert rmq("records", "orders", "completed").err == "no completed messages\n"


@pytest.mark.promise(
    "`rmq peek` and `rmq records` take the same conditions as `rmq redrive` and say where a search ended."
)
def test_a_condition_chooses_among_all_that_there_are(rmq, queue):
    """Also behind as many others as are shown at most."""
    queue.publish_many([{"order": order} for order in range(300)])
    queue.publish("later", delay_seconds=3600)
    asked = ("--where", "json['order'] in [7, 250, 260, 299]", "--json")
    rows = rmq("peek", "orders", *asked, "--limit", "3").documents
    assert [row["payload"] for row in rows] == ['{"order": 7}', '{"order": 250}', '{"order": 260}']
    assert len(rmq("peek", "orders", "delayed", "--where", "due_at > '2020-01-01'", "--json").documents) == 1
    for error in ("a timeout", "no such customer"):
        fail(queue, error)
    (row,) = rmq("records", "orders", "failed", "--where", "'timeout' in error", "--json").documents
    assert row["payload"] == '{"order": 0}'
    assert rmq("records", "orders", "failed", "--where", "tenant == 'acme'").err == "no matching failed messages\n"
    assert rmq("peek", "orders", "--where", "tenant == 'acme'").err == "no matching message is pending\n"


@pytest.mark.promise(
    "`rmq peek` and `rmq records` take the same conditions as `rmq redrive` and say where a search ended."
)
def test_a_search_says_where_it_ended(rmq, queue, monkeypatch):
    monkeypatch.setattr("redis_message_queue.cli.message_view.SEARCHED_MESSAGES", 250)
    queue.publish_many([f"message {place}" for place in range(251)])
    ended = rmq("peek", "orders", "--where", "payload == 'message 250'", "--json")
    assert (ended.documents, ended.err) == ([], "searched the first 250 messages only; there may be more\n")
    assert rmq("peek", "orders", "--where", "payload == 'message 249'", "--limit", "1", "--json").err == ""


def test_bytes_that_are_no_text_are_shown_as_base64(rmq, queue, client):
    client.lpush(queue.key.dead_letter, b"\xff\x00")
    encoded = base64.b64encode(b"\xff\x00").decode()
    assert rmq("records", "orders", "--json").documents[0]["payload_base64"] == encoded
    assert f"base64:{encoded}" in rmq("records", "orders").out


@pytest.mark.promise("Control characters in a payload, a tenant name or an error never reach the terminal.")
def test_control_characters_never_reach_the_terminal(clean_server, queue):
    """Neither those of a payload, nor of a tenant's name, nor of an error."""
    queue.publish(NASTY, tenant=f"t{NASTY}")
    fail(queue, NASTY)
    with Terminal("records", "orders", "failed", "--url", clean_server.url) as terminal:
        assert terminal.end() == ExitStatus.OK
    assert "evil" in terminal.shown
    for character in ("\x1b[2J", "\x07", "\u202e", "\x9b"):
        assert character not in terminal.shown


def test_an_empty_place_is_told_on_stderr_and_is_no_failure(rmq):
    ended = rmq("peek", "orders")
    assert (ended.status, ended.out, ended.err) == (ExitStatus.OK, "", "no message is pending\n")
    assert rmq("peek", "orders", "--json").err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["peek", "orders", "completed"], "'pending', 'processing', 'delayed'"),
        (["records", "orders", "pending"], "'completed', 'failed', 'dead_letters'"),
        (["peek", "orders", "--limit", "0"], "--limit"),
        (["peek", "orders", "--limit", "10001"], "--limit"),
        (["peek", "orders", "delayed", "--tenant", "acme"], "--tenant"),
        (["peek", "orders", "--where", "tenant"], "--where: tenant is not a condition"),
        (["records", "orders", "--where", "due_at is None"], "--where: a record has no field 'due_at'"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(rmq, words, told):
    ended = rmq(*words)
    assert ended.status == ExitStatus.USAGE
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("letter", ["a", "ä", "€", "𝄞"])
def test_a_shortened_text_is_a_beginning_of_it(letter, subtests):
    for length in (58, 59, 60, 61, 239, 240, 241, 242, 100_000):
        text = letter * length
        for given in (text, text.encode()):
            with subtests.test(length=length, given=type(given)):
                short = shortened(given)
                assert len(short) <= 60
                assert text.startswith(short.rstrip("…"))
                assert short.endswith("…") == (len(text) > 60)
