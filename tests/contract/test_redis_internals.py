"""The undocumented parts of redis-py: one module uses them, and the installed redis-py has each of them."""

import ast
import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.backoff
import redis.retry
from redis import _parsers
from redis.utils import HIREDIS_AVAILABLE

import redis_message_queue
from redis_message_queue.redis_py import redis_internals
from tests.concurrency import LIMIT_SECONDS

pytestmark = pytest.mark.topic("Connections and clients")

PACKAGE = Path(redis_message_queue.__file__).parent
THE_ONE_MODULE = PACKAGE / "redis_py" / "redis_internals.py"

PARSERS = ["python", "python, RESP3", *(["hiredis"] if HIREDIS_AVAILABLE else [])]
every_parser = pytest.mark.parametrize("parser", PARSERS)


def options_of(parser: str, server: Any, *, asynchronous: bool) -> dict[str, Any]:
    """The arguments of a client whose connections use this parser."""
    prefix = "_Async" if asynchronous else "_"
    name = {"python": "RESP2Parser", "python, RESP3": "RESP3Parser", "hiredis": "HiredisParser"}[parser]
    chosen = getattr(_parsers, prefix + name)
    protocol = 3 if "RESP3" in parser else 2
    return {"host": "127.0.0.1", "port": server.port, "parser_class": chosen, "protocol": protocol}


# One module uses them


def private_names(server: Any) -> set[str]:
    """The private attributes of redis-py's clients, pools, connections, parsers, retries and backoffs."""
    backoffs = [redis.backoff.ExponentialBackoff(), redis.backoff.ConstantBackoff(1)]
    objects: list[Any] = [*backoffs, redis.retry.Retry(backoffs[0], 1), redis.asyncio.retry.Retry(backoffs[0], 1)]
    objects.append(redis.asyncio.cluster.ClusterNode("127.0.0.1", server.port))
    for module in (redis, redis.asyncio):
        client: Any = module.Redis(host="127.0.0.1", port=server.port)
        connection = client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
        objects += [client, client.connection_pool, connection, connection._parser]
    names = {name for each in objects for name in dir(each)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def uses(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield where a module gets such an attribute of another object than its own, or has its name as a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names and not is_own(node, tree):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
            yield f"{node.lineno}: {node.value!r}"


def is_own(attribute: ast.Attribute, tree: ast.AST) -> bool:
    """Whether an attribute of `self` or `cls` is one that a class of this module makes."""
    if not isinstance(attribute.value, ast.Name) or attribute.value.id not in ("self", "cls"):
        return False
    return any(
        (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == attribute.attr)
        or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == attribute.attr)
        for node in ast.walk(tree)
    )


def test_one_module_uses_what_redis_py_does_not_document(server):
    names = private_names(server)
    known = {"_available_connections", "_in_use_connections", "_sock", "_parser", "_reader", "_writer", "_lock"}
    assert known | {"_supported_errors", "_backoff", "_buffer", "_connections"} <= names
    found = [
        f"{path.relative_to(PACKAGE)}:{use}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != THE_ONE_MODULE and PACKAGE / "spark" not in path.parents  # its readers and rows are Spark's
        for use in uses(ast.parse(path.read_text()), names)
    ]
    assert not found, "use redis_py/redis_internals.py for private attributes of redis-py: " + "; ".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "pool._available_connections",
        "pool._in_use_connections.add(connection)",
        "client.connection_pool._lock",
        "getattr(connection, '_sock', None)",
        "connection._parser._reader",
        "class Before:\n    def connect(self):\n        return self._sock",
        "class Once:\n    def errors(self):\n        return self._supported_errors",
    ],
)
def test_a_use_elsewhere_is_found(server, source):
    assert list(uses(ast.parse(source), private_names(server)))


# The installed redis-py has each of them


@every_parser
def test_a_sync_pool_and_its_connections_have_what_we_use(server, parser):
    pool: Any = redis.ConnectionPool(**options_of(parser, server, asynchronous=False))
    with contextlib.closing(pool), redis.Redis(connection_pool=pool) as client:
        client.ping()
        assert redis_internals.fits(pool)
        with redis_internals.lock_of(pool):
            (connection,) = redis_internals.idle_of(pool)
        assert not redis_internals.in_use_of(pool)
        assert pool.get_connection() is connection
        assert redis_internals.in_use_of(pool) == {connection}
        assert not redis_internals.idle_of(pool)
        assert redis_internals.connections_of(pool) == [connection]
        assert redis_internals.socket_of(connection).getpeername() == ("127.0.0.1", server.port)
        assert not redis_internals.needs_care(connection)
        assert not redis_internals.is_set_apart(connection)
        connection.disconnect()
        assert redis_internals.socket_of(connection) is None
        pool.release(connection)


@every_parser
def test_a_sync_parser_takes_bytes_and_tells_what_is_unread(server, parser):
    pool: Any = redis.ConnectionPool(**options_of(parser, server, asynchronous=False))
    with contextlib.closing(pool), redis.Redis(connection_pool=pool) as client:
        client.ping()
        (connection,) = redis_internals.idle_of(pool)
        known = redis_internals.parser_of(connection)
        assert known is not None
        has_unread, feed = known
        assert not has_unread()
        feed(b":1")
        feed(b"2\r\n$3\r\nabc\r\n")
        assert connection.read_response(disable_decoding=True) == 12
        assert connection.read_response(disable_decoding=True) == b"abc"
        assert not has_unread()
        feed(b":1")
        assert has_unread()


@every_parser
def test_an_asyncio_pool_and_its_connections_have_what_we_use(server, parser):
    async def look() -> None:
        pool: Any = redis.asyncio.ConnectionPool(**options_of(parser, server, asynchronous=True))
        client = redis.asyncio.Redis(connection_pool=pool)
        await client.ping()
        assert redis_internals.fits(pool)
        (connection,) = redis_internals.idle_of(pool)
        assert await pool.get_connection() is connection
        assert redis_internals.in_use_of(pool) == {connection}
        assert redis_internals.connections_of(pool) == [connection]
        assert redis_internals.loop_of(connection) is asyncio.get_running_loop()
        assert redis_internals.has_known_streams(connection)
        assert not redis_internals.needs_care(connection)
        assert not redis_internals.is_set_apart(connection)
        await check_unread(connection)
        await pool.release(connection)
        await pool.disconnect()
        assert redis_internals.reader_of(connection) is None
        assert redis_internals.writer_of(connection) is None

    asyncio.run(look())


async def check_unread(connection: Any) -> None:
    """Send two commands, and read their replies one after the other."""
    assert not redis_internals.has_unread(connection)
    redis_internals.writer_of(connection).write(b"PING\r\n" * 2)
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(redis_internals.unread_of(connection)) < len(b"+PONG\r\n" * 2):  # noqa: ASYNC110  a stream tells nobody
            await asyncio.sleep(0.001)
    assert redis_internals.has_unread(connection)
    assert await connection.read_response(disable_decoding=True) == b"PONG"
    assert redis_internals.has_unread(connection), "the second reply: in the stream or in the parser"
    assert await connection.read_response(disable_decoding=True) == b"PONG"
    assert not redis_internals.has_unread(connection)


def test_an_asyncio_pool_tells_whether_redis_py_changes_its_lists(server):
    async def look() -> None:
        pool: Any = redis.asyncio.ConnectionPool(host="127.0.0.1", port=server.port)
        assert not redis_internals.lock_of(pool).locked()
        async with redis_internals.lock_of(pool):
            assert redis_internals.lock_of(pool).locked()
            waiting = asyncio.ensure_future(pool.get_connection())
            await asyncio.sleep(0)
            assert not redis_internals.in_use_of(pool)
        connection = await waiting
        assert redis_internals.in_use_of(pool) == {connection}
        await pool.release(connection)
        await pool.disconnect()

    asyncio.run(look())


def test_an_asyncio_cluster_node_has_its_connections(server):
    async def look() -> None:
        node = redis.asyncio.cluster.ClusterNode("127.0.0.1", server.port)
        assert redis_internals.connections_of(node) == []
        connection = node.acquire_connection()
        assert redis_internals.connections_of(node) == [connection]

    asyncio.run(look())


@pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["sync", "asyncio"])
def test_a_connection_that_redis_py_must_care_for_is_noticed(server, module):
    pool = module.ConnectionPool(host="127.0.0.1", port=server.port, health_check_interval=5)
    assert redis_internals.needs_care(pool.connection_class(**pool.connection_kwargs))
    pool = module.ConnectionPool(host="127.0.0.1", port=server.port)
    connection = pool.connection_class(**pool.connection_kwargs)
    assert not redis_internals.needs_care(connection)
    connection.read_response = connection.read_response
    assert redis_internals.is_set_apart(connection)


@pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["sync", "asyncio"])
def test_a_connection_whose_server_moves_is_noticed(server, module):
    pool = module.ConnectionPool(host="127.0.0.1", port=server.port)
    connection = pool.connection_class(**pool.connection_kwargs)
    if not hasattr(connection, "mark_for_reconnect"):
        pytest.skip(f"redis-py {redis.__version__} does not handle such announcements")
    assert not redis_internals.is_set_apart(connection)
    connection.mark_for_reconnect()
    assert redis_internals.is_set_apart(connection)


@pytest.mark.parametrize("retry_class", [redis.retry.Retry, redis.asyncio.retry.Retry], ids=["sync", "asyncio"])
def test_a_retry_tells_its_errors_and_its_longest_pause(retry_class):
    backoffs = redis.backoff.ExponentialBackoff(cap=3), redis.backoff.ConstantBackoff(2), redis.backoff.NoBackoff()
    retries = [retry_class(backoff, 1, supported_errors=(KeyError,)) for backoff in backoffs]
    assert [redis_internals.errors_of(each) for each in retries] == [(KeyError,)] * 3
    assert [redis_internals.longest_pause_of(each) for each in retries] == [3, 2, 0]
    assert redis_internals.longest_pause_of(retry_class(lambda failures: 1, 1)) is None
