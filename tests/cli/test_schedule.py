"""`rmq schedule` adds, lists and removes schedules."""

import pytest

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.exit_status import ExitStatus

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq schedule add`, `list` and `remove` manage the schedules of a queue.")
def test_schedules_are_added_listed_and_removed(rmq, text_client):
    queue = RedisMessageQueue("orders", client=text_client)
    details = ("--cron", "0 3 * * *", "--timezone", "Europe/Vienna", "--tenant", "t", "-H", "a=b", "--missed", "all")
    added = rmq("schedule", "add", "orders", "nightly", '{"report": 1}', *details, "--json")
    (stored,) = queue.schedules()
    assert (added.status, added.documents[0]["changed"]) == (ExitStatus.OK, True)
    assert added.documents[0]["next_tick"] == stored.next_tick.isoformat()
    assert (stored.cron, stored.timezone, stored.tenant) == ("0 3 * * *", "Europe/Vienna", "t")
    assert (stored.headers, stored.missed, stored.payload) == ({"a": "b"}, "all", '{"report": 1}')
    assert not rmq("schedule", "add", "orders", "nightly", '{"report": 1}', *details, "--json").documents[0]["changed"]
    assert rmq("schedule", "add", "orders", "often", "m", "--every-seconds", "60").status == ExitStatus.OK
    listed = rmq("schedule", "list", "orders", "--json").documents
    assert [one["name"] for one in listed] == ["often", "nightly"]
    assert listed[1]["next_tick"] == stored.next_tick.isoformat() and listed[1]["last_tick"] is None
    table = rmq("schedule", "list", "orders").out
    assert "0 3 * * *" in table and "every 60 s" in table
    removed = rmq("schedule", "remove", "orders", "often", "--json")
    assert removed.documents == [{"queue": "orders", "name": "often", "removed": True}]
    assert [one.name for one in queue.schedules()] == ["nightly"]


def test_what_is_not_there_or_cannot_be_is_said_in_one_line(rmq):
    absent = rmq("schedule", "remove", "orders", "nightly")
    assert absent.status == ExitStatus.FAILED and "no schedule 'nightly'" in absent.err
    assert "has no schedules" in rmq("schedule", "list", "orders").err
    assert rmq("schedule", "list", "orders", "--json").documents == []
    wrong = rmq("schedule", "add", "orders", "nightly", "m", "--cron", "at three")
    assert wrong.status != ExitStatus.OK and "'at three' is not a cron expression" in wrong.err
    assert "give cron or every_seconds" in rmq("schedule", "add", "orders", "nightly", "m").err
