"""From a URL to a client: one server, a socket file or a cluster, and the password never shown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

import redis
from redis.exceptions import NoPermissionError, RedisClusterException, RedisError

from redis_message_queue.cli.exit_status import ServerUnusableError
from redis_message_queue.errors import ConfigurationError

DEFAULT_URL = "redis://localhost:6379/0"
_SCHEMES = ("redis", "rediss", "unix")
_FORMS = "redis://[[user]:password@]host[:port][/db], rediss://... for TLS, or unix:///path/to.sock[?db=0]"
# Long enough for a server far away, short enough for somebody who waits; a URL may say otherwise (?socket_timeout=60).
_TIMEOUTS: dict[str, Any] = {"socket_connect_timeout": 5.0, "socket_timeout": 30.0}
# A queue lies in one slot: it works, and its operator looks, while a slot of others is not served.
_OF_CLUSTERS = _TIMEOUTS | {"require_full_coverage": False}


def shown(url: str) -> str:
    """A URL for people: without user, password and options."""
    parts = _checked(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    return f"{parts.scheme}://{host}:{parts.port or 6379}{parts.path}"


@contextlib.contextmanager
def open_client(url: str, **options: Any) -> Iterator[Any]:
    """A client that has seen its server: of a cluster if the server is part of one."""
    in_cluster = _is_cluster(url)
    with _as_unusable(url):
        if in_cluster:
            client: Any = redis.RedisCluster.from_url(url, **_OF_CLUSTERS | options)
        else:
            client = redis.Redis.from_url(url, **_TIMEOUTS | options)
    try:
        yield client
    finally:
        client.close()


@contextlib.asynccontextmanager
async def open_async_client(url: str, **options: Any) -> AsyncIterator[Any]:
    """The same for asyncio."""
    import redis.asyncio

    client: Any
    if _is_cluster(url):
        client = redis.asyncio.RedisCluster.from_url(url, **_OF_CLUSTERS | options)
    else:
        client = redis.asyncio.Redis.from_url(url, **_TIMEOUTS | options)
    try:
        yield client
    finally:
        await client.aclose()


def _is_cluster(url: str) -> bool:
    """Ask the server; also the first contact, so that nobody waits out a retry budget for a mistyped host."""
    _checked(url)
    with _as_unusable(url), redis.Redis.from_url(url, **_TIMEOUTS) as client:
        try:
            return bool(client.info("cluster").get("cluster_enabled"))
        except NoPermissionError:
            return False  # whoever may not ask has a server of their own, or hears it from the first script


@contextlib.contextmanager
def _as_unusable(url: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        raise ServerUnusableError(
            f"cannot use {shown(url)}: {error or type(error).__name__}; another server is chosen by --url or REDIS_URL"
        ) from error
    except ValueError as error:
        # Not its text: that may quote what was given, password and all.
        raise ConfigurationError(f"the URL has an option that redis-py does not take; the form is {_FORMS}") from error


def _checked(url: str) -> SplitResult:
    """The parts of a URL, or an error that quotes nothing of it: a password may stand anywhere in a wrong one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"--url or REDIS_URL is no URL of a server; the form is {_FORMS}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(f"--url or REDIS_URL must begin with redis://, rediss:// or unix://: {_FORMS}")
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise ConfigurationError(
            "--url or REDIS_URL: write / ? # and @ of a password as %2F %3F %23 and %40, else it ends there"
        )
    return parts
