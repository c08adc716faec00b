"""Who may use the dashboard, and what a page of another site cannot do."""

import asyncio
import sys
import time
from types import SimpleNamespace

import httpx
import pytest
import redis.asyncio
from starlette.requests import Request
from starlette.responses import Response

from redis_message_queue.dashboard import Dashboard, access
from redis_message_queue.values.errors import ConfigurationError
from tests import fork_server
from tests.dashboard.pages import Page
from tests.dashboard.scenario import open_queue

pytestmark = pytest.mark.topic("Dashboard")

DASHBOARD = [sys.executable, "-W", "error", "-m", "redis_message_queue", "dashboard"]
TOKEN = "correct-horse-battery-staple"
OF_A_BROWSER = {"accept": "text/html"}


@pytest.fixture
def guarded(client, start_dashboard):
    open_queue(client, "orders").publish("one")
    return start_dashboard("orders", "--allow-changes", RMQ_DASHBOARD_TOKEN=TOKEN)


def csrf_of(response: httpx.Response) -> str:
    return next(one["value"] for one in Page(response).all("input") if one.get("name") == "csrf")


def log_in(browser: httpx.Client, token: str = TOKEN) -> httpx.Response:
    csrf = csrf_of(browser.get("/login"))
    return browser.post("/login", data={"csrf": csrf, "token": token}, headers={"origin": str(browser.base_url)})


@pytest.mark.promise("The dashboard listens on this machine only, unless it has a token.")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_another_address_needs_a_token(host, clean_server):
    command = [*DASHBOARD, "--host", host, "--url", clean_server.url]
    ended = fork_server.run(command)
    assert ended.returncode == 2
    assert "RMQ_DASHBOARD_TOKEN" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.promise("The dashboard shows /metrics to those who may see its pages.")
def test_metrics_are_for_those_with_the_token(guarded):
    """As a bearer, as Prometheus sends it."""
    with guarded.browser() as browser:
        assert browser.get("/metrics").status_code == 401
        answer = browser.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'rmq_messages{queue="orders",state="pending"} 1.0' in answer.text


def test_a_short_token_is_refused(clean_server):
    command = [*DASHBOARD, "--token", "short", "--url", clean_server.url]
    ended = fork_server.run(command)
    assert (ended.returncode, "16 characters" in ended.stderr) == (2, True)


@pytest.mark.promise("A page of another site cannot reach the dashboard under a name of its own (DNS rebinding).")
def test_only_known_names_are_answered(client, start_dashboard):
    known = ("localhost", "127.0.0.1:1234", "[::1]:80", "LOCALHOST.", "ops.example")
    unknown = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:127", "")
    with start_dashboard("--allowed-host", "Ops.Example").browser() as browser:
        for host in (*known, *unknown):
            for path in ("/", "/static/dashboard.js", "/login"):
                response = browser.get(path, headers={"host": host})
                assert (response.status_code == 403) == (host in unknown), (host, path)
                assert "content-security-policy" in response.headers


@pytest.mark.parametrize(
    ("options", "address", "status"),
    [
        ({}, "127.0.0.1", 200),
        ({}, "::1", 200),
        ({}, "192.0.2.7", 403),
        ({"authenticated": True}, "192.0.2.7", 200),
        ({"token": TOKEN}, "192.0.2.7", 401),
    ],
)
def test_without_a_token_only_this_machine_is_answered(options, address, status):
    async def get() -> int:
        dashboard = Dashboard(redis.asyncio.Redis(), discover=False, **options)  # no queue is read
        transport = httpx.ASGITransport(dashboard, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            return (await browser.get("/")).status_code

    assert asyncio.run(get()) == status


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"queues": "orders"}, "queues"),
        ({"queues": [1]}, "queues"),
        ({"queues": None}, "queues"),
        ({"client": redis.Redis()}, "client"),
        ({"client": None}, "client"),
        ({"allowed_hosts": 5}, "allowed_hosts"),
        ({"key_separator": ""}, "key_separator"),
        ({"queues": ["a::pending::b"]}, "name"),
        ({"token": "short"}, "token"),
        ({"token": 5}, "token"),
        ({"allowed_hosts": "example.org"}, "allowed_hosts"),
        ({"allow_changes": 1}, "allow_changes"),
        ({"authenticated": "yes"}, "authenticated"),
        ({"discover": None}, "discover"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options, named):
    with pytest.raises(ConfigurationError, match=named):
        Dashboard(**{"client": redis.asyncio.Redis(), "queues": ["orders"]} | options)


@pytest.mark.promise("With a token, nothing but the login page is shown to people who do not have it.")
def test_nothing_is_shown_without_the_token(guarded):
    with guarded.browser() as browser:
        for path in ("/", "/queue?name=orders", "/messages?name=orders", "/events", "/change?name=orders", "/nowhere"):
            assert browser.get(path).status_code == 401
            response = browser.get(path, headers=OF_A_BROWSER)
            assert (response.status_code, response.headers["location"]) == (303, "/login")
            assert "orders" not in response.text
        assert browser.post("/change?name=orders&action=purge&source=pending").status_code == 401
        for wrong in ("Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            assert browser.get("/", headers={"authorization": wrong}).status_code == 401
        assert browser.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_person_logs_in_and_out(guarded):
    with guarded.browser() as browser:
        assert "That is not the token." in Page(log_in(browser, "wrong")).words
        assert browser.get("/").status_code == 401
        answer = log_in(browser)
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert browser.get("/queue?name=orders").status_code == 200
        browser.get("/logout")
        assert browser.get("/").status_code == 401


def test_a_copy_of_a_cookie_opens_nothing_after_its_logout(guarded):
    """Other sessions go on."""
    with guarded.browser() as browser, guarded.browser() as other:
        for one in (browser, other):
            assert log_in(one).status_code == 303
        copy = browser.cookies["rmq_dashboard"]
        browser.get("/logout")
        assert other.get("/").status_code == 200
    with guarded.browser(cookies={"rmq_dashboard": copy}) as thief:
        for path in ("/", "/events", "/logout"):
            assert thief.get(path).status_code == 401, path


def test_a_made_up_session_is_none(guarded):
    for cookie in ("9999999999.", "9999999999.00", "x.y", "", "9999999999"):
        with guarded.browser(cookies={"rmq_dashboard": cookie}) as browser:
            assert browser.get("/").status_code == 401, cookie


def test_a_session_of_another_token_is_none(guarded, start_dashboard):
    other = start_dashboard("orders", "--token", "another-secret-of-another")
    with other.browser() as browser:
        log_in(browser, "another-secret-of-another")
        session = browser.cookies["rmq_dashboard"]
    with guarded.browser(cookies={"rmq_dashboard": session}) as browser:
        assert browser.get("/").status_code == 401


PURGE = {"name": "emails", "action": "purge", "source": "pending"}


def purge(browser: httpx.Client, csrf: str, **headers: str) -> int:
    return browser.post("/change", params=PURGE, data={"csrf": csrf, "typed": "emails"}, headers=headers).status_code


@pytest.mark.promise("The dashboard is read-only unless you start it with `--allow-changes`.")
def test_a_read_only_dashboard_changes_nothing(browser, client):
    assert browser.get("/change", params=PURGE).status_code == 403
    assert purge(browser, "x" * 32, origin=str(browser.base_url)) == 403
    assert "Redrive" not in browser.get("/messages?name=payments&source=failed").text
    assert "Purge" not in browser.get("/queue?name=emails").text
    assert client.llen("emails::pending") == 1_204


@pytest.mark.promise("A page of another site cannot make a browser change a queue (CSRF).")
def test_a_form_of_another_site_changes_nothing(editor, client):
    ours = str(editor.base_url)
    csrf = csrf_of(editor.get("/change", params=PURGE))
    assert purge(editor, csrf) == 403  # a browser sends the origin of every form
    assert purge(editor, csrf, origin="null") == 403
    assert purge(editor, csrf, origin="http://evil.example") == 403
    assert purge(editor, csrf, origin=ours.replace("127.0.0.1", "localhost")) == 403
    assert purge(editor, "", origin=ours) == 403
    assert purge(editor, csrf[:-1], origin=ours) == 403
    assert purge(editor, csrf, origin=ours, **{"sec-fetch-site": "cross-site"}) == 403
    assert client.llen("emails::pending") == 1_204
    editor.cookies.clear()
    assert purge(editor, "", origin=ours) == 403
    assert purge(editor, csrf, origin=ours) == 403
    assert client.llen("emails::pending") == 1_204


def test_a_link_changes_nothing(editor, client):
    assert editor.get("/change", params=PURGE | {"typed": "emails"}).status_code == 200
    assert editor.head("/change", params=PURGE | {"typed": "emails"}).status_code in (200, 405)
    assert editor.put("/change", params=PURGE).status_code == 405
    assert client.llen("emails::pending") == 1_204


def test_a_form_that_is_too_large_is_refused(editor):
    response = editor.post("/change", params=PURGE, content=b"x" * 100_000)
    assert response.status_code == 413


def test_a_session_ends_after_half_a_day(guarded, monkeypatch):
    def opened(hours_ago: float) -> str:
        monkeypatch.setattr(access, "time", SimpleNamespace(time=lambda: time.time() - 3600 * hours_ago))
        response = Response()
        url = httpx.URL(guarded.url)
        scope = {"type": "http", "scheme": "http", "path": "/", "headers": [], "server": (url.host, url.port)}
        access.Access(TOKEN, False, ()).open_session(Request(scope), response)
        return response.headers["set-cookie"].partition(";")[0].partition("=")[2]

    for hours_ago, status in ((11.9, 200), (12.1, 401)):
        with guarded.browser(cookies={access.SESSION: opened(hours_ago)}) as browser:
            assert browser.get("/").status_code == status
