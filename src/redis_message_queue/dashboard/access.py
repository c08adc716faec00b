"""Decides who may use the dashboard: by the Host header, the address, the token, and the origin of a form."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from redis_message_queue.values.checks import flag
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.plain_values import brief, is_text

SESSION, CSRF = "rmq_dashboard", "rmq_dashboard_csrf"  # cookies
SHORTEST_TOKEN = 16
_SESSION_SECONDS = 12 * 3600
# No inline scripts or styles, nothing from other hosts, no frames. Not `no-referrer`: it would hide the origin of our
# own forms, too.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Access:
    """The rules for requests."""

    def __init__(self, token: str | None, authenticated: bool, allowed_hosts: Collection[str]) -> None:
        flag("authenticated", authenticated)
        if token is not None and (not is_text(token) or len(token) < SHORTEST_TOKEN):
            raise ConfigurationError(f"token must be a text of at least {SHORTEST_TOKEN} characters")
        if is_text(allowed_hosts) or not isinstance(allowed_hosts, Collection) or not all(map(is_text, allowed_hosts)):
            raise ConfigurationError(f"allowed_hosts must be a list of host names, not {brief(allowed_hosts)}")
        self._token = token
        self._authenticated = authenticated
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in allowed_hosts)}
        self._closed: dict[str, int] = {}  # sessions that were logged out, and when they would have ended
        self._key = hashlib.sha256(b"redis-message-queue dashboard\0" + (token or "").encode()).digest()

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def refusal(self, request: Request) -> str | None:
        """Return why this request is not answered at all, or None."""
        host = _host_name(request.headers.get("host", ""))
        if host not in self._hosts and not _is_address(host):
            # A page of another site may point its own name at this address (DNS rebinding). Addresses are safe: the
            # browser sends the name that the page has.
            return (
                f"This dashboard is not known as {host!r}. Use its address, or allow the name: --allowed-host, or "
                "allowed_hosts=[...] where it is mounted."
            )
        if self._token is None and not self._authenticated and not _is_loopback(request):
            return (
                "Without a token, this dashboard answers only requests from the same machine. Set a token: "
                "RMQ_DASHBOARD_TOKEN, or token=... where it is mounted."
            )
        return None

    def is_logged_in(self, request: Request) -> bool:
        """Return whether the request has the token, or a session that was opened with it."""
        return self._token is None or self._has_bearer(request) or self._is_session(request.cookies.get(SESSION, ""))

    def is_token(self, given: str) -> bool:
        return self._token is not None and _same(given, self._token)

    def open_session(self, request: Request, response: Response) -> None:
        """Let the browser in for half a day."""
        session = f"{int(time.time()) + _SESSION_SECONDS}-{secrets.token_urlsafe(12)}"
        _set_cookie(request, response, SESSION, f"{session}.{self._sign(session)}")

    def close_session(self, request: Request, response: Response) -> None:
        """End the session: a copy of its cookie opens nothing any more."""
        cookie, now = request.cookies.get(SESSION, ""), time.time()
        if self._is_session(cookie):
            self._closed = {one: until for one, until in self._closed.items() if until > now}
            self._closed[cookie] = _end_of(cookie)
        response.delete_cookie(SESSION, path=_cookie_path(request), httponly=True, samesite="strict")

    def is_own_form(self, request: Request, csrf: str) -> bool:
        """Return whether a form comes from a page of ours: its origin is ours, and it repeats the cookie.

        A program that sends the token itself is not a browser that somebody could trick.
        """
        if self._token is not None and self._has_bearer(request):
            return True
        origin = urlsplit(request.headers.get("origin", ""))
        cookie = request.cookies.get(CSRF, "")
        return (
            bool(origin.netloc)
            and origin.netloc == request.headers.get("host", "")
            and request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
            and len(cookie) >= SHORTEST_TOKEN
            and _same(csrf, cookie)
        )

    def csrf_of(self, request: Request) -> str:
        """Return the value that forms of this browser repeat; a new one if it has none."""
        return request.cookies.get(CSRF) or secrets.token_urlsafe(24)

    def keep_csrf(self, request: Request, response: Response, csrf: str) -> None:
        if request.cookies.get(CSRF) != csrf:
            _set_cookie(request, response, CSRF, csrf)

    def _has_bearer(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(given.strip())

    def _is_session(self, cookie: str) -> bool:
        session, _, signature = cookie.partition(".")
        return _same(signature, self._sign(session)) and _end_of(cookie) > time.time() and cookie not in self._closed

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()


def _end_of(cookie: str) -> int:
    """Return when a session ends that we have signed."""
    return int(cookie.partition(".")[0].partition("-")[0])


def is_loopback(host: str) -> bool:
    """Return whether only programs on the same machine can reach this address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_loopback(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


def _host_name(header: str) -> str:
    """Return the host of a Host header, without the port and the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def _cookie_path(request: Request) -> str:
    return request.scope.get("root_path", "") or "/"


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    response.set_cookie(
        name,
        value,
        path=_cookie_path(request),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
