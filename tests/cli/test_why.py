"""`rmq why` explains why a message is not done."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq why` says in one sentence why a message is not done, and shows the facts.")
def test_the_reason_is_one_sentence_above_a_table(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    first, second = queue.submit("a", tenant="acme"), queue.submit("b", tenant="acme")
    ended = rmq("why", "orders", second.id)
    sentence, *facts = ended.out.splitlines()
    assert (ended.status, sentence) == (0, "No worker is connected; it waits behind 1 message of tenant acme.")
    assert any(one.split() == ["ahead", "1"] for one in facts)
    (found,) = rmq("why", "orders", first.id, "--json").documents
    assert (found["id"], found["cause"], found["facts"]["ahead"]) == (first.id, "no_worker", 0)
    assert rmq("why", "orders", "ab" * 16).status == ExitStatus.FAILED
    assert rmq("why", "orders", "nonsense").status == ExitStatus.USAGE
