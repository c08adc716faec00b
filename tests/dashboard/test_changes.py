"""Redriving and purging from the dashboard, with a question before."""

from typing import Any

import httpx
import pytest

from redis_message_queue import RedisMessageQueue
from tests.dashboard.pages import Page, comes
from tests.dashboard.scenario import HOSTILE, QUEUES, open_queue
from tests.dashboard.test_access import TOKEN, csrf_of

pytestmark = pytest.mark.topic("Dashboard")


def change(editor: httpx.Client, typed: str | None = None, **asked) -> str:
    """Confirm a change as a person does, and return what the page says then."""
    csrf = csrf_of(editor.get("/change", params=asked))
    form = {"csrf": csrf} | ({} if typed is None else {"typed": typed})
    response = editor.post("/change", params=asked, data=form, headers={"origin": str(editor.base_url)})
    assert response.status_code == 200, response.text
    return Page(response).words


@pytest.fixture
def payments(text_client) -> RedisMessageQueue:
    return open_queue(text_client, "payments")


def test_chosen_messages_are_redriven(editor, payments):
    chosen = [record.id for record in payments.records("failed")][:2]
    asked: dict[str, Any] = {"name": "payments", "action": "redrive", "source": "failed", "id": chosen}
    assert "Publish 2 messages from failed of payments again?" in Page(editor.get("/change", params=asked)).words
    assert payments.stats().failed == 6
    assert "Published 2 messages again." in change(editor, **asked)
    assert payments.stats().failed == 4
    assert {record.replay_of for record in payments.peek()} == set(chosen)
    assert "2 messages had left the list meanwhile." in change(editor, **asked)


def test_all_that_match_are_redriven(editor, payments):
    asked = {"name": "payments", "action": "redrive", "source": "failed"}
    assert "Published 1 message again." in change(editor, **asked, q="bank")
    assert "Published 5 messages again." in change(editor, **asked, where="error_type == 'ValueError'")
    assert payments.stats().failed == 0


@pytest.mark.promise("The dashboard asks before it deletes, and you have to type the name of the queue.")
def test_a_purge_needs_the_name_of_the_queue(editor, client):
    asked = {"name": "emails", "action": "purge", "source": "pending"}
    assert "Delete 1,204 messages (waiting) of emails for good?" in Page(editor.get("/change", params=asked)).words
    assert "Nothing was changed." in change(editor, **asked)
    assert "Nothing was changed." in change(editor, typed="orders", **asked)
    assert client.llen("emails::pending") == 1_204
    assert "Deleted 1,204 messages." in change(editor, typed="emails", **asked)
    assert client.llen("emails::pending") == 0


def test_the_messages_of_one_tenant_are_purged_alone(editor, text_client):
    queue = open_queue(text_client, "thumbnails")
    before = queue.tenants()
    change(editor, typed="thumbnails", name="thumbnails", action="purge", source="pending", tenant="bolt")
    assert queue.tenants() == {name: count for name, count in before.items() if name != "bolt"}


def test_a_queue_with_a_hostile_name_is_changed_too(editor, text_client):
    change(editor, typed=HOSTILE, name=HOSTILE, action="purge", source="failed")
    change(editor, typed=HOSTILE, name=HOSTILE, action="purge", source="pending", tenant=HOSTILE)
    assert open_queue(text_client, HOSTILE).stats().failed == 0


def test_a_queue_is_paused_and_resumed(editor, payments):
    assert "Pause payments?" in Page(editor.get("/change", params={"name": "payments", "action": "pause"})).words
    assert not payments.is_paused()
    assert "Paused." in change(editor, name="payments", action="pause")
    assert payments.is_paused()
    assert "It was paused already." in change(editor, name="payments", action="pause")
    assert comes(lambda: "Paused for" in Page(editor.get("/queue", params={"name": "payments"})).words)
    assert "action=resume" in editor.get("/queue", params={"name": "payments"}).text
    assert "Resumed." in change(editor, name="payments", action="resume")
    assert not payments.is_paused()
    assert "It was not paused." in change(editor, name="payments", action="resume")


def test_a_tenant_is_paused_and_resumed(editor, text_client):
    queue = open_queue(text_client, "thumbnails")
    page = Page(editor.get("/tenants", params={"name": "thumbnails"}))
    (link,) = [one for one in page.links if "action=pause" in one and "bolt" in one]
    assert "Pause tenant bolt of thumbnails?" in Page(editor.get(link)).words
    assert "Paused." in change(editor, name="thumbnails", action="pause", tenant="bolt")
    assert list(queue.paused_tenants()) == ["bolt"]
    assert not queue.is_paused()
    assert comes(lambda: "1 tenant is paused" in Page(editor.get("/queue", params={"name": "thumbnails"})).words)
    page = Page(editor.get("/tenants", params={"name": "thumbnails"}))
    assert "1 paused bolt since" in page.words
    assert [one for one in page.links if "action=resume" in one and "bolt" in one]
    assert "Resumed." in change(editor, name="thumbnails", action="resume", tenant="bolt")
    assert queue.paused_tenants() == {}


def test_messages_are_cancelled_where_they_wait(editor, text_client):
    queue = open_queue(text_client, "invoices")
    waiting, held, delayed = queue.submit("a"), queue.submit("b"), queue.submit("c", delay_seconds=60)
    page = Page(editor.get("/message", params={"name": "invoices", "source": "delayed", "id": delayed.id}))
    (link,) = [one for one in page.links if "action=cancel" in one]
    assert "Cancel 1 message of invoices?" in Page(editor.get(link)).words
    assert queue.stats().delayed == 1
    asked: dict[str, Any] = {"name": "invoices", "action": "cancel", "source": "delayed", "id": delayed.id}
    assert "Removed 1 message." in change(editor, **asked)
    assert queue.stats().delayed == 0
    asked |= {"source": "pending", "id": [waiting.id, held.id]}
    assert "Marked 2 messages, to be dropped in turn." in change(editor, **asked)
    handled: list[str | bytes] = []
    queue.run(lambda message: handled.append(message.payload), until_empty=True)
    assert handled == []
    assert "2 messages no longer in the queue." in change(editor, **asked)


def test_a_schedule_is_removed(editor, text_client):
    queue = open_queue(text_client, HOSTILE)
    links = Page(editor.get("/schedules", params={"name": HOSTILE})).links
    (link,) = [one for one in links if "action=unschedule" in one]
    assert "Messages that it has published stay." in Page(editor.get(link)).words
    assert "Removed." in change(editor, name=HOSTILE, action="unschedule", schedule=HOSTILE)
    assert queue.schedules() == []
    assert "There was no such schedule" in change(editor, name=HOSTILE, action="unschedule", schedule=HOSTILE)


def test_what_cannot_be_done_is_refused(editor):
    for asked in (
        {"action": "drop", "source": "pending"},
        {"action": "purge", "source": "processing"},
        {"action": "pause", "source": "pending"},
        {"action": "cancel", "source": "pending", "id": "0" * 32, "tenant": "acme"},
        {"action": "redrive", "source": "pending"},
        {"action": "redrive", "source": "failed", "id": "short"},
        {"action": "redrive", "source": "failed", "where": "1 +"},
        {"action": "redrive", "source": "failed", "tenant": "acme"},
        {"action": "cancel", "source": "pending"},
        {"action": "cancel", "source": "failed", "id": "0" * 32},
        {"action": "unschedule"},
        {"action": "pause", "schedule": "nightly"},
        {},
    ):
        assert editor.get("/change", params={"name": "payments"} | asked).status_code == 400, asked


def test_a_program_with_the_token_needs_no_form(scene, client, start_dashboard):
    running = start_dashboard(*QUEUES, "--allow-changes", RMQ_DASHBOARD_TOKEN=TOKEN)
    with running.browser(headers={"authorization": f"Bearer {TOKEN}"}) as program:
        asked = {"name": "emails", "action": "purge", "source": "pending"}
        assert program.post("/change", params=asked, data={"typed": "emails"}).status_code == 200
    assert client.llen("emails::pending") == 0
    status, said = running.stop()
    assert status == 0
    assert "emails: dashboard: purge pending by 127.0.0.1: Deleted 1,204 messages." in said
