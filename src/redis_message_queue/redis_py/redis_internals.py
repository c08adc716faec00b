"""The parts of redis-py that we use although it does not document them: each name is written here, once.

The getters are C functions: one costs 40 ns, beside the 30 us of an exchange.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any

from redis.asyncio import SSLConnection as AsyncSSLConnection
from redis.asyncio.cluster import NodesManager
from redis.connection import SSLConnection
from redis.credentials import StreamingCredentialProvider

# Of a pool
idle_of = attrgetter("_available_connections")
in_use_of = attrgetter("_in_use_connections")
lock_of = attrgetter("_lock")  # redis-py holds it while it changes the two others

# Of a connection: its socket, or its streams; None unless it is open
socket_of = attrgetter("_sock")
reader_of = attrgetter("_reader")
writer_of = attrgetter("_writer")

# Whether an asyncio cluster client can be told which node to ask last
_CAN_ASK_LAST = "last_failed_node_name" in inspect.signature(NodesManager.initialize).parameters

# Of a `Retry`
errors_of = attrgetter("_supported_errors")


def fits(pool: Any) -> bool:
    """Return whether we know how a pool keeps its connections."""
    available, in_use = (getattr(pool, name, None) for name in ("_available_connections", "_in_use_connections"))
    return isinstance(available, list) and isinstance(in_use, set) and hasattr(pool, "_lock")


def connections_of(pool: Any) -> list[Any]:
    """Return the connections that a pool, or an asyncio cluster node, has made."""
    names = ("_available_connections", "_in_use_connections", "_connections")
    return [each for name in names for each in list(getattr(pool, name, ()))]


def loop_of(connection: Any) -> asyncio.AbstractEventLoop | None:
    """Return the loop of an open connection."""
    loop: asyncio.AbstractEventLoop | None = getattr(getattr(connection, "_reader", None), "_loop", None)
    return loop


def needs_care(connection: Any) -> bool:
    """Return whether redis-py has more to do on a connection than to send and to read: checks, or new credentials."""
    provider = getattr(connection, "credential_provider", None)
    return bool(connection.health_check_interval) or isinstance(provider, StreamingCredentialProvider)


def is_set_apart(connection: Any) -> bool:
    """Return whether the server of a connection has announced that it moves, or somebody watches what is sent."""
    about = connection.__dict__
    return about.get("_should_reconnect") or "send_packed_command" in about or "read_response" in about


Parser = tuple[Callable[[], Any], Callable[[bytes], Any]]
"""Of a sync parser: whether it has unread bytes (which may be lost by asking), and how to give it bytes."""


def parser_of(connection: Any) -> Parser | None:
    """Return what we use of the parser of a sync connection; None if it is another one than we know."""
    parser = getattr(connection, "_parser", None)
    reader: Any = getattr(parser, "_reader", None)
    if hasattr(reader, "feed") and hasattr(reader, "has_data"):  # hiredis
        return reader.has_data, reader.feed
    stream = getattr(getattr(parser, "_buffer", None), "_buffer", None)
    if not isinstance(stream, io.BytesIO):
        return None

    def feed(data: bytes) -> None:
        place = stream.tell()
        stream.seek(0, os.SEEK_END)
        stream.write(data)
        stream.seek(place)

    return partial(stream.read, 1), feed


def has_known_streams(connection: Any) -> bool:
    """Return whether we can tell what redis-py has not read yet from an asyncio connection."""
    parser = getattr(connection, "_parser", None)
    by_hiredis, by_python = getattr(parser, "_reader", None), getattr(parser, "_buffer", None)
    is_known = hasattr(by_hiredis, "has_data") or isinstance(by_python, bytes)
    return is_known and isinstance(getattr(connection._reader, "_buffer", None), bytearray)


# What the stream of an asyncio connection has received and redis-py has not read
unread_of = attrgetter("_reader._buffer")


def has_unread(connection: Any) -> bool:
    """Return whether there are bytes in the stream or in the parser of an asyncio connection."""
    if unread_of(connection):
        return True
    parser = connection._parser
    reader = getattr(parser, "_reader", None)
    return bool(reader.has_data()) if reader is not None else bool(parser._buffer)


def reload_nodes(client: Any, silent: str) -> Awaitable[None]:
    """Let an asyncio cluster client ask which nodes have the slots, and the node that does not answer last.

    Older releases of redis-py may ask a frozen node first, and wait for their socket timeout.
    """
    reload: Awaitable[None] = client.nodes_manager.initialize(
        **{"last_failed_node_name": silent} if _CAN_ASK_LAST else {}
    )
    return reload


def longest_pause_of(retry: Any) -> Any:
    """Return the longest pause of a `Retry` with a backoff of redis-py; None if it is not known."""
    backoff = getattr(retry, "_backoff", None)
    if not type(backoff).__module__.startswith("redis."):
        return None
    return getattr(backoff, "_cap", getattr(backoff, "_backoff", None))


def uses_tls(pool: Any) -> bool:
    """Return whether the connections of a pool speak TLS."""
    kind = getattr(pool, "connection_class", None)
    return isinstance(kind, type) and issubclass(kind, SSLConnection | AsyncSSLConnection)
