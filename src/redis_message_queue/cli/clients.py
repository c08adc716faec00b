"""Opens clients from a URL: of one server, of a socket file or of a cluster. The password is never shown."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError
from redis.retry import Retry

from redis_message_queue.cli.exit_status import ServerUnusableError
from redis_message_queue.redis_py.tls_mismatch import tls_mismatch
from redis_message_queue.values.errors import ConfigurationError

DEFAULT_URL = "redis://localhost:6379/0"
_SCHEMES = ("redis", "rediss", "unix")
_FORMS = "redis://[[user]:password@]host[:port][/db], rediss://... for TLS, or unix:///path/to.sock[?db=0]"
_HANDSHAKE_SECONDS, _LOOK_SECONDS = 1.0, 0.5  # together, and twice the look, 2 seconds
# Long enough for a distant server, short enough for a person who waits; a URL can override them (?socket_timeout=60).
_TIMEOUTS: dict[str, Any] = {"socket_connect_timeout": 5.0, "socket_timeout": 30.0}
# A queue lives in one slot: it works, and its operator can look at it, while other slots are not served.
_OF_CLUSTERS = _TIMEOUTS | {"require_full_coverage": False}


def without_password(url: str) -> str:
    """Return a URL that may be shown: without user, password and options."""
    parts = _checked(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    return f"{parts.scheme}://{host}:{parts.port or 6379}{parts.path}"


@contextlib.contextmanager
def open_client(url: str, **options: Any) -> Iterator[Any]:
    """Open a client that has reached its server; a cluster client if the server is part of a cluster."""
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
    """Open the same for asyncio."""
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


def node_of(client: Any, key: str) -> Any:
    """Return a plain client of the one server that has the key, also if the client is of a whole cluster."""
    if not isinstance(client, redis.RedisCluster):
        return client
    cluster: Any = client  # redis-py has no types here
    return cluster.get_redis_connection(cluster.get_node_from_key(key))


def text_of(value: Any) -> str:
    """Return a server's answer as text, whether the client decodes or not."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def time_at(node: Any) -> datetime:
    """Return the time by a server's clock."""
    seconds, microseconds = node.time()
    return datetime.fromtimestamp(seconds + microseconds / 1_000_000, UTC)


def _is_cluster(url: str) -> bool:
    """Ask the server. This is the first contact, so a mistyped host fails at once and not after the retry budget."""
    _checked(url)
    with _as_unusable(url), redis.Redis.from_url(url, **_TIMEOUTS | {"retry": Retry(NoBackoff(), 0)}) as client:
        try:
            return _has_cluster_mode(client, url)
        except NoPermissionError:
            return False  # if it is a cluster after all, the first script says so


def _has_cluster_mode(client: Any, url: str) -> bool:
    """Ask for the mode. With TLS first for a second: at a port without it, the handshake would never end."""
    settings = client.connection_pool.connection_kwargs
    longest = settings["socket_timeout"]
    if url.startswith("rediss:") and longest > _HANDSHAKE_SECONDS:
        settings["socket_timeout"] = _HANDSHAKE_SECONDS
        try:
            return bool(client.info("cluster").get("cluster_enabled"))
        except redis.TimeoutError:
            if _other_scheme(url) is not None:
                raise
        settings["socket_timeout"] = longest
    return bool(client.info("cluster").get("cluster_enabled"))


@contextlib.contextmanager
def _as_unusable(url: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        advice = _advice(url, error)
        text = (
            advice or f"{str(error).rstrip('.') or type(error).__name__}; choose another server with --url or REDIS_URL"
        )
        raise ServerUnusableError(
            f"cannot use {without_password(url)}: {text}", is_final=advice is not None or is_final(error)
        ) from error
    except (ValueError, TypeError) as error:
        # Not its text: that may quote the URL, password included.
        raise ConfigurationError(
            f"--url or REDIS_URL has an option that redis-py does not know; the form is {_FORMS}"
        ) from error


def is_final(error: BaseException | None) -> bool:
    """Return whether the server refuses the password, or its certificate is refused: another attempt cannot help."""
    while error is not None:
        if isinstance(error, AuthenticationError | ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _advice(url: str, error: Exception) -> str | None:
    """Return what to do about a wrong password or scheme; None if it is neither."""
    if isinstance(error, AuthenticationError):
        if urlsplit(url).password is None:
            return "the server wants a password; write it into the URL: redis://[user]:password@host:port/0"
        return "the server does not accept this user and password; check them in --url or REDIS_URL"
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return _other_scheme(url)
    return None


def _other_scheme(url: str) -> str | None:
    """Advice for a URL that asks for TLS where the server has none, or the other way round; None if it is not that."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return None
    host, port = parts.hostname or "localhost", parts.port or 6379
    return tls_mismatch(host, port, with_tls=parts.scheme == "rediss", seconds=_LOOK_SECONDS)


def _checked(url: str) -> SplitResult:
    """Split a URL. The errors quote nothing of it: in a wrong one, any part may be the password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(f"--url or REDIS_URL is not the URL of a server; the form is {_FORMS}") from None
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(f"--url or REDIS_URL must begin with redis://, rediss:// or unix://: {_FORMS}")
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise ConfigurationError(
            "--url or REDIS_URL: in the password, write / ? # and @ as %2F %3F %23 and %40, or the URL ends there"
        )
    return parts
