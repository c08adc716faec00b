"""The pages of the dashboard, as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import redis.asyncio
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from redis_message_queue.dashboard import text
from redis_message_queue.dashboard.access import HEADERS, Access
from redis_message_queue.dashboard.changes import MOST_IDS, Change
from redis_message_queue.dashboard.history import History, history_of
from redis_message_queue.dashboard.queue_verdict import Level
from redis_message_queue.dashboard.search import (
    CANCELLED,
    REDRIVEN,
    SEARCHED_MESSAGES,
    SOURCES,
    Place,
    locate,
    matcher,
    messages_of,
)
from redis_message_queue.dashboard.watch import INTERVAL_SECONDS, UNREADABLE, QueueWatch, Watch, Watches, in_order
from redis_message_queue.metrics.server_queues import ServerQueues
from redis_message_queue.values import wording
from redis_message_queue.values.checks import flag
from redis_message_queue.values.errors import (
    ConfigurationError,
    PayloadTypeError,
    PayloadValueError,
)
from redis_message_queue.values.messages import MessageRecord
from redis_message_queue.values.plain_values import error_text
from redis_message_queue.version import __version__

_HERE = Path(__file__).parent
_RETRY_BUDGET_SECONDS = 3.0  # a person waits for the page
_QUEUES_A_PAGE, _MOST_QUEUES = 50, 1_000
_LIMITS = (50, 200, 1_000)  # messages on a page
_TENANTS_A_PAGE, _MOST_PAUSED = 1_000, 200
_FORM_BYTES = 64 * 1024
_STREAM_SECONDS = 30.0  # then the browser opens a new one: a server that stops need not wait longer
_MOST_STREAMS = 100
# A name of a queue or of a tenant that cannot be one, a condition that cannot be read.
_BAD_REQUESTS = (ConfigurationError, PayloadTypeError, PayloadValueError)

Page = Callable[[Request], Awaitable[Response]]


def _environment() -> Environment:
    """Return the templates with what all of them use."""
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    templates.filters |= {name: getattr(wording, name) for name in ("age", "clock", "count", "one_line")}
    templates.filters |= {"lines": text.lines, "rate": text.rate}
    templates.globals |= {
        "Level": Level,
        "SOURCES": SOURCES,
        "REDRIVEN": REDRIVEN,
        "CANCELLED": CANCELLED,
        "points": text.points,
    }
    return templates


class Dashboard:
    """An ASGI application that shows queues to people on call. Run it with `rmq dashboard`, or mount it in your own."""

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        queues: Collection[str] = (),
        *,
        allow_changes: bool = False,
        token: str | None = None,
        authenticated: bool = False,
        allowed_hosts: Collection[str] = (),
        discover: bool = True,
        key_separator: str = "::",
        hash_tag: bool | None = None,
    ) -> None:
        """Make a dashboard of the queues on one server.

        Args:
            client: An asyncio client of redis-py.
            queues: The names of queues to show; others come from the registry of the server.
            allow_changes: Let people redrive, cancel, purge, pause and unschedule. Without it, nothing is written.
            token: What people must know to log in. Without a token, only requests from the same machine are answered.
            authenticated: Say True if your application has already checked who sends each request.
            allowed_hosts: Names under which browsers may reach the dashboard. Addresses and localhost always work.
            discover: Whether queues that are not in ``queues`` are shown, too.
            key_separator: What separates the parts of a Redis key.
            hash_tag: Whether keys have a hash tag; None decides as the queues do.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        self._server = ServerQueues(
            client,
            queues,
            discover=discover,
            retry_budget_seconds=_RETRY_BUDGET_SECONDS,
            key_separator=key_separator,
            hash_tag=hash_tag,
        )
        flag("allow_changes", allow_changes)
        self._allow_changes = allow_changes
        self._access = Access(token, authenticated, allowed_hosts)
        self._watches = Watches(self._open)
        self._streams = 0
        self._stopped = asyncio.Event()
        self._exporter: Any = None  # made for the first scrape
        self._templates = _environment()
        self._app = self._starlette()

    def _starlette(self) -> Starlette:
        """Return the application behind the access checks."""
        return Starlette(
            routes=[
                Route("/", self._overview),
                Route("/queue", self._queue),
                Route("/messages", self._messages),
                Route("/message", self._message),
                Route("/payload", self._payload),
                Route("/tenants", self._tenants),
                Route("/schedules", self._schedules),
                Route("/change", self._change, methods=["GET", "POST"]),
                Route("/events", self._events),
                Route("/metrics", self._metrics),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout),
                Mount("/static", StaticFiles(directory=_HERE / "static")),
            ],
            exception_handlers={HTTPException: self._http_error}
            | dict.fromkeys(_BAD_REQUESTS, self._bad_request)
            | dict.fromkeys(UNREADABLE, self._unreadable),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, if its sender may use the dashboard."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = ((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in names)]
            await send(message)

        request = Request(scope)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        refusal = self._access.refusal(request)
        if refusal is not None:
            await PlainTextResponse(f"{wording.one_line(refusal, 1_000)}\n", 403)(scope, receive, send_safely)
        elif not self._access.is_logged_in(request) and path != "/login" and not path.startswith("/static/"):
            login = RedirectResponse(_root(request) + "/login", 303)
            is_page = "text/html" in request.headers.get("accept", "")
            response = login if is_page else PlainTextResponse("Log in, or send the token as a bearer.\n", 401)
            await response(scope, receive, send_safely)
        else:
            await self._app(scope, receive, send_safely)

    def stop(self) -> None:
        """End the streams of all browsers, so that the server can stop."""
        self._stopped.set()

    # -- queues

    async def _open(self, name: str) -> Watch:
        return QueueWatch(name, await self._server.open(name))

    async def _watch(self, request: Request) -> Watch:
        """Return the watch of the queue, or of the partition, that the address names."""
        name, partition = request.query_params.get("name", ""), request.query_params.get("partition")
        if not self._server.discovers and name not in self._server.names:
            raise HTTPException(404, "This dashboard does not show that queue.")
        watch = await self._watches.of(name)
        if partition is None:
            return watch
        number = _number(request, "partition", -1)
        if not 0 <= number < len(watch.partitions):
            raise HTTPException(404, "The queue has no such partition.")
        return watch.parts[number]

    # -- pages

    async def _overview(self, request: Request) -> Response:
        return self._render(request, "overview.html", **await self._queues(request))

    async def _queues(self, request: Request) -> dict[str, Any]:
        wanted = request.query_params.get("q", "")
        names = [name for name in await self._server.known() if wanted.lower() in name.lower()]
        sort, dead = request.query_params.get("sort", ""), request.query_params.get("dead", "")
        watches = in_order(await self._watches.look_at(names[:_MOST_QUEUES]), sort)
        if dead:
            watches = [watch for watch in watches if watch.now is not None and watch.now.stats.dead_letters]
        levels = [watch.headline.level for watch in watches]
        first = _number(request, "first")
        after = first + _QUEUES_A_PAGE
        return {
            "watches": watches[first:after],
            "total": len(watches),
            "first": first,
            "after": after if after < len(watches) else None,
            "q": wanted,
            "sort": sort,
            "dead": dead,
            "levels": {level: levels.count(level) for level in Level},
            "discovers": self._server.discovers,
        }

    async def _queue(self, request: Request) -> Response:
        watch = await self._watch(request)
        await watch.look(closely=True)
        return self._render(request, "queue.html", watch=watch)

    async def _messages(self, request: Request) -> Response:
        watch, asked = await self._watch(request), request.query_params
        source, limit = _source(request), _number(request, "limit", _LIMITS[0])
        limit = min((one for one in _LIMITS if one >= limit), default=_LIMITS[-1])
        tenant = asked.get("tenant") or None if source == "pending" else None
        shown: dict[str, Any] = {"source": source, "tenant": tenant, "limit": limit, "found": None, "problem": None}
        await watch.look()
        try:
            matches = matcher(asked.get("q", ""), asked.get("where", ""), source)
            queues = [one.queue for one in watch.samplers]
            shown["found"] = await messages_of(queues, source, matches, limit, tenant)
        except ConfigurationError as error:  # a condition or a tenant that somebody is about to type
            shown["problem"] = str(error)
        more = next((one for one in _LIMITS if one > limit), None)
        leases = {one.id: one for one in watch.now.leases} if watch.now else {}
        return self._render(
            request,
            "messages.html",
            **shown,
            watch=watch,
            more=more,
            leases=leases,
            q=asked.get("q", ""),
            where=asked.get("where", ""),
            most_ids=MOST_IDS,
        )

    async def _message(self, request: Request) -> Response:
        """Show a message, wherever it is now, or what the journal tells of one that has left the queue."""
        watch, message_id = await self._watch(request), _message_id(request)
        await watch.look()
        place = await locate(watch.samplers, message_id, _source(request))
        record = place.record if place else None
        number, history = await self._history(watch, message_id, place)
        if record is None and not history.steps:
            raise HTTPException(404, f"No such message among the first {SEARCHED_MESSAGES:,} of each list.")
        lease = next((one for one in watch.now.leases if one.id == message_id), None) if watch.now else None
        why = ""
        with contextlib.suppress(*UNREADABLE):  # this user may not read journals: the page tells the rest
            why = (await watch.queue.why(message_id)).sentence
        return self._render(
            request,
            "message.html",
            watch=watch,
            id=message_id,
            source=place.source if place else None,
            record=record or MessageRecord(payload=None),
            part=watch.parts[number] if watch.partitions else None,
            lease=lease,
            why=why,
            history=history,
            views=text.payload_views(record.payload) if record else [],
        )

    async def _history(self, watch: Watch, message_id: str, place: Place | None) -> tuple[int, History]:
        """Return the history of a message, and the partition that tells it."""
        numbers = range(len(watch.samplers)) if place is None else [place.partition]
        for number in numbers:
            history = await history_of(watch.samplers[number].queue, message_id, place.record if place else None)
            if history.steps:
                break
        return number, history

    async def _payload(self, request: Request) -> Response:
        watch, message_id = await self._watch(request), _message_id(request)
        place = await locate(watch.samplers, message_id, _source(request))
        if place is None:
            raise HTTPException(404, "The message has left the queue.")
        payload = place.record.payload or b""
        return Response(
            payload if isinstance(payload, bytes) else payload.encode(),
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{message_id}.bin"'},
        )

    async def _tenants(self, request: Request) -> Response:
        watch, wanted = await self._watch(request), request.query_params.get("q", "")
        await watch.look()
        tenants = await watch.tenants(_TENANTS_A_PAGE) if watch.now else []
        shown = [one for one in tenants if wanted.lower() in (one.name or "").lower()]
        exact = await watch.queue.tenant(wanted).length() if wanted else None
        has_paused = watch.now is not None and watch.now.paused_tenants
        paused = await watch.queue.paused_tenants(max_tenants=_MOST_PAUSED) if has_paused else {}
        return self._render(
            request,
            "tenants.html",
            watch=watch,
            tenants=shown,
            read=len(tenants),
            q=wanted,
            exact=exact,
            paused=paused,
            most_paused=_MOST_PAUSED,
        )

    async def _schedules(self, request: Request) -> Response:
        watch = await self._watch(request)
        await watch.look()
        return self._render(
            request, "schedules.html", watch=watch, now=watch.now, schedules=await watch.queue.schedules()
        )

    async def _change(self, request: Request) -> Response:
        """Ask before a change; make it when the form of that page comes back."""
        watch = await self._watch(request)
        if not self._allow_changes:
            raise HTTPException(403, "This dashboard is read-only. Start it with --allow-changes to change queues.")
        asked = request.query_params
        change = Change(
            action=asked.get("action", ""),
            queue=watch.name,
            source=asked.get("source", ""),
            ids=asked.getlist("id"),
            text=asked.get("q", ""),
            where=asked.get("where", ""),
            tenant=asked.get("tenant", ""),
            schedule=asked.get("schedule", ""),
        )
        problem = None
        if request.method == "POST":
            form = await self._form(request)
            if not change.needs_name or form.get("typed", "") == watch.name:
                who = request.client.host if request.client else "an unknown address"
                done = await change.make(watch.queue, who)
                return self._render(request, "done.html", watch=watch, done=done, source=change.source)
            problem = "The name is not that of the queue. Nothing was changed."
        csrf = self._access.csrf_of(request)
        question = await change.question(watch.queue)
        response = self._render(
            request, "change.html", watch=watch, change=change, question=question, csrf=csrf, problem=problem
        )
        self._access.keep_csrf(request, response, csrf)
        return response

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form of ours."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM_BYTES:
                raise HTTPException(413, "That form is too large.")
        fields = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if not self._access.is_own_form(request, fields.get("csrf", "")):
            raise HTTPException(403, "This form was not sent from a page of this dashboard. Open the page again.")
        return fields

    async def _metrics(self, request: Request) -> Response:
        """Show the counts of all queues to Prometheus."""
        from redis_message_queue.metrics.exporter import CONTENT_TYPE, MetricsExporter

        self._exporter = self._exporter or MetricsExporter(self._server)
        return Response(await self._exporter.scrape(), media_type=CONTENT_TYPE)

    # -- log in

    async def _login(self, request: Request) -> Response:
        problem = None
        if not self._access.has_token:
            return RedirectResponse(_root(request) + "/", 303)
        if request.method == "POST":
            if self._access.is_token((await self._form(request)).get("token", "")):
                response: Response = RedirectResponse(_root(request) + "/", 303)
                self._access.open_session(request, response)
                return response
            await asyncio.sleep(0.5)
            problem = "That is not the token."
        csrf = self._access.csrf_of(request)
        response = self._render(request, "login.html", csrf=csrf, problem=problem)
        self._access.keep_csrf(request, response, csrf)
        return response

    async def _logout(self, request: Request) -> Response:
        response = RedirectResponse(_root(request) + "/login", 303)
        self._access.close_session(request, response)
        return response

    # -- live updates

    async def _events(self, request: Request) -> Response:
        """Send the changing part of a page again and again, as server-sent events."""
        of_one = "name" in request.query_params
        if of_one:
            await self._watch(request)  # raises for a queue that it does not show

        async def part() -> str:
            if not of_one:
                return self._text(request, "_queues.html", **await self._queues(request))
            watch = await self._watch(request)
            await watch.look(closely=True)
            return self._text(request, "_queue.html", watch=watch)

        # Checked and counted in one step: of a burst, all would pass before the first of them has begun.
        if self._streams >= _MOST_STREAMS:
            raise HTTPException(503, f"{_MOST_STREAMS} browsers watch already.")
        self._streams += 1
        return _EventStream(self._stream(part), self._end_stream)

    def _end_stream(self) -> None:
        self._streams -= 1

    async def _stream(self, part: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        ends_at, last = time.monotonic() + _STREAM_SECONDS, ""
        while time.monotonic() < ends_at and not self._stopped.is_set():
            html = await part()
            yield ": nothing new\n\n" if html == last else f"data: {json.dumps(html)}\n\n"
            last = html
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), INTERVAL_SECONDS)

    # -- rendering

    def _render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        return Response(self._text(request, template, **values), status, media_type="text/html")

    def _text(self, request: Request, template: str, **values: Any) -> str:
        root = _root(request)

        def url(path: str, address: Mapping[str, str] | None = None, **parameters: Any) -> str:
            given = {
                name: value for name, value in {**(address or {}), **parameters}.items() if value not in (None, "")
            }
            return root + path + (f"?{urlencode(given, doseq=True, errors='replace')}" if given else "")

        common = {"url": url, "allow_changes": self._allow_changes, "has_token": self._access.has_token}
        return self._templates.get_template(template).render(**common, version=__version__, **values)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._render(request, "error.html", error.status_code, problem=error.detail)

    async def _bad_request(self, request: Request, error: Exception) -> Response:
        return self._render(request, "error.html", 400, problem=str(error))

    async def _unreadable(self, request: Request, error: Exception) -> Response:
        return self._render(request, "error.html", 502, problem=error_text(error) or type(error).__name__)


class _EventStream(StreamingResponse):
    """Server-sent events; ``on_end`` is called when they are over, even if the browser left before the first."""

    def __init__(self, content: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _root(request: Request) -> str:
    """Return the path where the dashboard is mounted."""
    return str(request.scope.get("root_path", ""))


def _source(request: Request) -> str:
    source = request.query_params.get("source", "pending")
    if source not in SOURCES:
        raise HTTPException(400, f"source must be one of {', '.join(SOURCES)}.")
    return source


def _message_id(request: Request) -> str:
    message_id = request.query_params.get("id", "").strip().lower()
    if len(message_id) != 32 or not set(message_id) <= set("0123456789abcdef"):
        raise HTTPException(400, "An id has 32 hexadecimal digits.")
    return message_id


def _number(request: Request, name: str, otherwise: int = 0) -> int:
    given = request.query_params.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 9 else otherwise
