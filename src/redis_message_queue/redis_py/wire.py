"""Commands and replies of redis-py clients, for both shells."""

from __future__ import annotations

import inspect
import math
import re
import selectors
import threading
from collections.abc import Iterator
from typing import Any, TypeGuard

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.connection
import redis.retry
from redis import exceptions

from redis_message_queue.protocol.port import Argument, Command, StateMissingError
from redis_message_queue.redis_py import server_errors
from redis_message_queue.redis_py.attempt_limits import plain_class
from redis_message_queue.redis_py.redis_internals import longest_pause_of, socket_of
from redis_message_queue.stored.scripts import all_scripts
from redis_message_queue.values.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    LuaScriptError,
    NotPermittedError,
    PartitionCountError,
    StateVersionError,
)

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_KNOWN_SHAPES = 16  # how many numbers of keys and arguments of one command are packed in advance
_LONGEST_WINDOW = 3600.0  # seconds that a client counts as which may retry forever


def _default_timeout(connection: Any) -> Any:
    """Return the default socket_timeout of a connection: redis-py 8 has one, 6 and 7 have none."""
    return inspect.signature(connection.__init__).parameters["socket_timeout"].default


_DEFAULT_TIMEOUTS = {
    False: _default_timeout(redis.connection.AbstractConnection),
    True: _default_timeout(redis.asyncio.connection.AbstractConnection),
}
_KNOWN_RETRIES = (redis.retry.Retry, redis.asyncio.retry.Retry)
_TRANSIENT_CLASSES = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.MasterDownError,
    exceptions.NoScriptError,
    exceptions.SlotNotCoveredError,
    ConnectionError,
    TimeoutError,
)
_PERMANENT_CLASSES = (exceptions.AuthenticationError, exceptions.AuthorizationError, LuaScriptError)


# How a script reports a missing permission: Redis 7 and Valkey, and Redis 6.2.
_FORBIDDEN_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
# What a script says of a queue with another number of partitions: see lua/open_queue.lua and lua/lib/state.lua.
_PARTITIONS = re.compile(r"(?:PARTITIONS |STATEVERSION partitions:)(\d+) in ")
_FORBIDDEN_COMMAND = re.compile(r"no permissions to run the '([\w|-]+)' command")
_PLACE_IN_SCRIPT = re.compile(r"(?:call to f_([0-9a-f]{40})\): )?@user_script: ?(\d+)")


def is_transient(error: BaseException) -> bool:
    """Return whether the same command may succeed a moment later."""
    if isinstance(error, _PERMANENT_CLASSES):
        return False
    if isinstance(error, _TRANSIENT_CLASSES):
        return True
    # The second is raised by the cluster client itself, and is no RedisError.
    if isinstance(error, exceptions.RedisError | exceptions.RedisClusterException):
        return server_errors.is_transient(str(error))
    return False


def is_full_pool(error: Exception) -> bool:
    """Return whether a pool has given out all of its connections. One that waits by itself has another error."""
    return isinstance(error, exceptions.MaxConnectionsError) or str(error) == "Too many connections"


def is_closed_meanwhile(error: Exception, client: Any) -> bool:
    """Return whether redis-py failed because somebody has closed the connection that it was using.

    Another thread may call `close()`. After a few MOVED, a cluster client closes the connections of all callers.
    """
    said = str(error)
    return is_cluster(client) or "file descriptor" in said or "'NoneType' object" in said or "closed file" in said


def answered(reply: Any, script: str) -> Any:
    """Return the reply to a script, or the error to raise for it."""
    return translated(reply, script) if isinstance(reply, exceptions.ResponseError) else reply


def translated(error: exceptions.ResponseError, script: str) -> Exception:
    """Return the error to raise for an error reply of the server."""
    said = str(error)
    # A MovedError is an AskError, too.
    if isinstance(error, exceptions.AskError | exceptions.ClusterCrossSlotError) or "CROSSSLOT" in said:
        return ConfigurationError(
            "this server is a node of a Redis Cluster and the client is a plain one; "
            "use redis.RedisCluster (or redis.asyncio.RedisCluster)",
            operation=script,
        )
    if isinstance(error, LuaScriptError) or is_transient(error):
        return error
    if "NOSTATE " in said:
        return StateMissingError(f"Redis refused {script}: {said}", operation=script)
    if partitions := _PARTITIONS.search(said):
        return PartitionCountError(
            f"this queue has {_counted(int(partitions[1]))} in Redis, and this object was made for another number; "
            f"nothing was changed: pass partitions={partitions[1]}, or let an operator grow the queue "
            "(`rmq partitions`, or `grow_partitions()`), and repeat that if it was interrupted",
            operation=script,
        )
    if "STATEVERSION " in said:
        version = said.partition("STATEVERSION ")[2].partition(" in ")[0]
        return StateVersionError(
            f"the state of this queue in Redis has version {version!r}, and this release reads version 1; nothing was "
            "changed: upgrade this library, or use a release that reads that version",
            operation=script,
        )
    refusal = not_permitted(error, script)
    if refusal is not None:
        return refusal
    return LuaScriptError(f"Redis refused {script}: {said}", operation=script)


def _counted(partitions: int) -> str:
    return "no partitions" if partitions == 1 else f"{partitions} partitions"


def not_permitted(error: Exception, operation: str) -> NotPermittedError | None:
    """Return an error that says which permission to grant; None if the error is about something else."""
    said = str(error)
    in_script = any(phrase in said for phrase in _FORBIDDEN_IN_SCRIPT)
    named = _FORBIDDEN_COMMAND.search(said)
    if not (in_script or named or isinstance(error, exceptions.NoPermissionError)):
        return None
    if named or "this command" in said:
        commands = (named[1],) if named else _commands_at(said, operation)
        what = f"run {' or '.join(one.upper() for one in commands) or 'a command'}"
        grant = " ".join(f"+{one.lower()}" for one in commands)
    else:
        what, grant = "access a key", "~<queue>::*"
    after = "; the script was stopped there, and what it had done before stays done" if in_script else ""
    refusal = NotPermittedError(
        f"the Redis user of this client may not {what}, which {operation} needs; grant it: ACL SETUSER <user> {grant}"
        f"{', with the name of the queue' if grant.startswith('~') else ''} (`rmq doctor` checks all that a user "
        f"needs){after}",
        operation=operation,
    )
    refusal.grant = grant
    return refusal


def with_advice(answers: list[Any], commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
    """Return the replies to plain commands; errors about permissions and wrong types are ours, as in scripts."""
    return [_advised(answer, str(command[0])) for answer, command in zip(answers, commands, strict=True)]


def _advised(answer: Any, command: str) -> Any:
    if isinstance(answer, list) and command == "EXEC":
        return [_advised(one, "a transaction") for one in answer]
    if not isinstance(answer, exceptions.ResponseError):
        return answer
    refusal: LuaScriptError | None = not_permitted(answer, command)
    if refusal is None and str(answer).startswith("WRONGTYPE"):
        refusal = LuaScriptError(f"Redis refused {command}: {answer}", operation=command)
    if refusal is None:
        return answer
    refusal.__cause__ = answer
    return refusal


def _commands_at(said: str, name: str) -> tuple[str, ...]:
    """Return the commands that an error may be about.

    Redis 6.2 names the line, not the command. It names the digest of the script, too, unless the script returned the
    error.
    """
    place = _PLACE_IN_SCRIPT.search(said)
    if place is None:
        return ()
    digest, line = place.groups()
    # The copies of a script for the kinds of clients differ in their digests, and not in what a line calls.
    found = [one for one in all_scripts() if (one.sha == digest if digest else one.name == name)]
    return found[0].commands_in(int(line)) if found else ()


def any_is_read_only(answers: list[Any]) -> bool:
    """Return whether a server that became a replica has refused one of the commands."""
    return any(isinstance(answer, Exception) and is_read_only(answer) for answer in answers)


def has_moved(answers: list[Any]) -> bool:
    """Return whether a cluster node has redirected one of the commands."""
    return any(isinstance(answer, exceptions.MovedError | exceptions.AskError) for answer in answers)


def pack(command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> bytes:
    """Return an EVALSHA in the Redis protocol. What is the same in each call is packed only once."""
    shape = (len(extra_keys), len(arguments))
    halves = command.packed.get(shape)
    if halves is None:
        halves = _pack_constants(command, *shape)
        if len(command.packed) < _KNOWN_SHAPES:
            command.packed[shape] = halves
    before, after = halves
    parts = [before, *map(_bulk, extra_keys), after] if extra_keys else [before, after]
    for value in arguments:
        data = value if type(value) is bytes else b"%d" % value if type(value) is int else to_bytes(value)
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def pack_command(command_args: tuple[Argument, ...]) -> bytes:
    """Return a command in the Redis protocol."""
    return b"*%d\r\n%b" % (len(command_args), b"".join(map(_bulk, command_args)))


def _pack_constants(command: Command, extra_keys: int, arguments: int) -> tuple[bytes, bytes]:
    """Return what goes before the keys that a call brings itself, and what goes between them and its arguments."""
    key_count = len(command.keys) + extra_keys
    before: tuple[Argument, ...] = ("EVALSHA", command.script.sha, key_count, *command.keys)
    head = b"*%d\r\n" % (len(before) + extra_keys + len(command.settings) + arguments)
    return head + b"".join(map(_bulk, before)), b"".join(map(_bulk, command.settings))


def _bulk(value: Argument) -> bytes:
    data = to_bytes(value)
    return b"$%d\r\n%b\r\n" % (len(data), data)


def to_bytes(value: Argument) -> bytes:
    """Return what goes over the wire. The client's encoding is not used: it must not change the names of keys."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else b"%d" % value


# A server ends a BLPOP when its event loop next turns: because of any command, or by its timer, up to 100 ms late. So
# a consumer that is punctual sends a command when the time is over by its own clock, and by the server's milliseconds.
_TIMER_SLACK_SECONDS = 0.002
# Redis 6.2 cuts off what is less than a whole millisecond, 0.001 too, and 0 would block forever.
_SHORTEST_WAIT_SECONDS = 0.002
# A server ends a blocking command by a timer that runs ten times a second.
LATE_TIMER_SECONDS = 0.25


def nudge(wakeup: str) -> bytes:
    """Return a packed command that costs little, and that a consumer may run."""
    return pack_command(("LLEN", wakeup))


def readable(connections: list[Any], seconds: float) -> list[Any]:
    """Return the open connections that have something to read, as soon as there is one, or none after this time."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            if socket_of(connection) is None:  # another thread has closed it: reading says so
                return [connection]
            selector.register(socket_of(connection), selectors.EVENT_READ, connection)
        return [key.data for key, _ in selector.select(seconds)]


def blpop(wakeups: tuple[str, ...], seconds: float) -> tuple[Argument, ...]:
    """Return a BLPOP that ends after this time, or somewhat later."""
    return ("BLPOP", *wakeups, f"{max(seconds, _SHORTEST_WAIT_SECONDS):.6f}")


def nudge_after(seconds: float) -> float:
    """Return how many seconds after a BLPOP for this time a command ends it, by the clock of any server."""
    return max(seconds, _SHORTEST_WAIT_SECONDS) + _TIMER_SLACK_SECONDS


def command_args(
    verb: str, command: Command, extra_keys: tuple[str, ...], arguments: tuple[Argument, ...]
) -> tuple[Any, ...]:
    """Return the same command for a client that packs it itself: EVALSHA with the digest, or EVAL with the source."""
    head = command.script.sha if verb == "EVALSHA" else command.script.source
    key_count = len(command.keys) + len(extra_keys)
    parts = (*command.keys, *extra_keys, *command.settings, *arguments)
    return (verb, head, key_count, *map(to_bytes, parts))


def refuse_unusable_client(client: Any, *, asynchronous: bool, parameter: str = "client") -> None:
    """Raise for a client that this queue cannot work with, and name the ``parameter`` that it was given as."""
    wanted = "redis.asyncio.Redis or RedisCluster" if asynchronous else "redis.Redis or RedisCluster"
    if isinstance(client, redis.sentinel.Sentinel | redis.asyncio.sentinel.Sentinel):
        raise ConfigurationTypeError(
            f"{parameter} is a Sentinel manager, which sends no commands itself; pass sentinel.master_for(name)"
        )
    async_classes = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
    sync_classes = (redis.Redis, redis.RedisCluster)
    if isinstance(client, sync_classes if asynchronous else async_classes):
        other = "redis_message_queue" if asynchronous else "redis_message_queue.asyncio"
        raise ConfigurationTypeError(
            f"{parameter} is a {type(client).__module__}.{type(client).__name__}; this queue needs a {wanted}, "
            f"or use RedisMessageQueue from {other}"
        )
    if not hasattr(client, "execute_command"):
        raise ConfigurationTypeError(f"{parameter} must be a {wanted}, not {type(client).__name__}")
    if getattr(client, "connection", None) is not None or getattr(client, "single_connection_client", False):
        raise ConfigurationError(
            f"{parameter} was made with single_connection_client=True and would share one socket between a "
            "consumer and its heartbeat; pass a client with a connection pool"
        )


def is_cluster(client: Any) -> bool:
    """Return whether this is a cluster client, so that the keys of a queue must share a hash tag."""
    return isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)


def is_read_only(error: BaseException) -> bool:
    """Return whether the server became a replica; a new connection leads to the primary."""
    return isinstance(error, exceptions.ReadOnlyError) or "READONLY" in str(error)


def decodes(client: Any) -> bool:
    """Return whether the client decodes replies to text."""
    get_encoder = getattr(client, "get_encoder", None)
    return bool(get_encoder().decode_responses) if get_encoder is not None else False


def connection_settings(client: Any) -> dict[str, Any]:
    """Return the keyword arguments of the client's connections."""
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None) or getattr(client, "connection_kwargs", None)
    if settings is None and is_cluster(client):
        settings = client.get_connection_kwargs()  # the only way that works before the first command
    return dict(settings or {})


def primary_of(client: Any) -> Any:
    """Return the primary's address that Sentinel named; None for a client without Sentinel."""
    return getattr(getattr(client, "connection_pool", None), "master_address", None)


def socket_timeout(client: Any) -> float | None:
    """Return how many seconds the client waits for one reply; None if it waits forever."""
    settings = connection_settings(client)
    if "socket_timeout" in settings:
        seconds = settings["socket_timeout"]
    else:
        seconds = _DEFAULT_TIMEOUTS[isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster)]
    # redis-py accepts any value; a socket with a timeout of 0 does not block at all.
    return float(seconds) if _is_number(seconds) and seconds > 0 else None


def address(client: Any) -> str:
    """Return the server's address for people to read, without user name and password."""
    if is_cluster(client):
        nodes = sorted(getattr(client.nodes_manager, "startup_nodes", {}))
        return f"cluster {', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}"
    settings = connection_settings(client)
    pool: Any = getattr(client, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        sentinels = ", ".join(address(sentinel) for sentinel in manager.sentinels)
        return f"the master {pool.service_name!r} of the sentinels {sentinels}"
    if settings.get("path"):
        return str(settings["path"])
    host = str(settings.get("host", "localhost"))
    return f"{f'[{host}]' if ':' in host else host}:{settings.get('port', 6379)}"


def retry_window(client: Any) -> float:
    """Return for how many seconds, at most, the client may retry one command.

    A client that waits for replies without a timeout, that retries forever, or whose `Retry` is not redis-py's own
    counts as an hour.
    """
    settings = connection_settings(client)
    timeout = socket_timeout(client)
    retries, pause = _client_retries(settings, client)
    if timeout is None or retries is None or pause is None:
        return _LONGEST_WINDOW
    connecting = settings.get("socket_connect_timeout")
    connecting = timeout if not _is_number(connecting) else float(connecting)
    pool_wait = getattr(getattr(client, "connection_pool", None), "timeout", 0.0)
    attempts = retries + 1
    # Each attempt may have to connect first, and connecting is repeated by the same rule.
    one = timeout + pause + attempts * (connecting + pause) + (pool_wait if _is_number(pool_wait) else 0.0)
    return min(_LONGEST_WINDOW, attempts * one)


def _client_retries(settings: dict[str, Any], client: Any) -> tuple[int | None, float | None]:
    """Return how many times a client retries a command, and its longest pause; None if there is no known limit."""
    retry = settings.get("retry") or getattr(client, "retry", None)
    if retry is None:
        return int(bool(settings.get("retry_on_error") or settings.get("retry_on_timeout"))), 0.0
    if plain_class(type(retry)) not in _KNOWN_RETRIES:
        return None, None
    retries, longest = retry.get_retries(), longest_pause_of(retry)
    if not isinstance(retries, int) or retries < 0:
        return None, None
    if not _is_number(longest):
        return retries, None if retries else 0.0
    return retries, float(longest)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def close_idle_connections(client: Any) -> None:
    """Close the pooled connections that are not in use; redis-py opens them again when it needs them."""
    nodes = [node.redis_connection for node in client.get_nodes()] if is_cluster(client) else [client]
    for node in nodes:
        pool = getattr(node, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)


def locks_of(client: Any) -> Iterator[Any]:
    """Yield every lock inside a client, whatever redis-py calls it."""
    seen: set[int] = set()
    to_visit = [client]
    while to_visit:
        each = to_visit.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _LOCKS):
            yield each
        elif isinstance(each, dict):
            to_visit += each.values()
        elif isinstance(each, list | tuple | set):
            to_visit += each
        elif each is client or type(each).__module__.partition(".")[0] == "redis":
            to_visit += getattr(each, "__dict__", {}).values()


def is_plain(client: Any, kind: Any, pools: tuple[type, ...], connections: tuple[type, ...]) -> bool:
    """Return whether we may pack commands ourselves: for a pooled client of redis-py that nothing instruments."""
    if type(client) is not kind:
        return False
    execute = kind.execute_command
    if "execute_command" in vars(client) or hasattr(execute, "__wrapped__"):
        return False
    pool = client.connection_pool
    return (
        execute.__module__ == kind.__module__
        and type(pool) in pools
        and getattr(pool, "cache", None) is None
        and plain_class(pool.connection_class) in connections
    )
