"""What both shells know of redis-py: its errors, its clients' settings, and how a command is packed."""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Iterator
from typing import Any, TypeGuard, cast

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.connection
import redis.retry
from redis import exceptions

from redis_message_queue import server_errors
from redis_message_queue.attempt_limits import plain_class
from redis_message_queue.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    LuaScriptError,
    NotPermittedError,
    StateVersionError,
)
from redis_message_queue.protocol.port import Argument, Command, StateMissingError
from redis_message_queue.scripts import all_names
from redis_message_queue.scripts import script as script_of

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_LONGEST_WINDOW = 3600.0  # seconds that a client without an end to its patience counts as


def _default_timeout(connection: Any) -> Any:
    """What a connection does that is given no socket_timeout: redis-py 8 has a default, 6 and 7 have none."""
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
_HOPELESS_CLASSES = (exceptions.AuthenticationError, exceptions.AuthorizationError, LuaScriptError)


# How a script says that its user may not do something: Redis 7 and Valkey, and Redis 6.2.
_FORBIDDEN_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")
_FORBIDDEN_COMMAND = re.compile(r"no permissions to run the '([\w|-]+)' command")
_PLACE_IN_SCRIPT = re.compile(r"(?:call to f_([0-9a-f]{40})\): )?@user_script: ?(\d+)")


def is_transient(error: BaseException) -> bool:
    """Whether the same command may succeed a moment later."""
    if isinstance(error, _HOPELESS_CLASSES):
        return False
    if isinstance(error, _TRANSIENT_CLASSES):
        return True
    # The second is what the cluster client raises by itself, and no RedisError.
    if isinstance(error, exceptions.RedisError | exceptions.RedisClusterException):
        return server_errors.is_transient(str(error))
    return False


def translated(error: exceptions.ResponseError, script: str) -> Exception:
    """A refusal by the server, as the caller should see it."""
    said = str(error)
    # A MovedError is an AskError too.
    if isinstance(error, exceptions.AskError | exceptions.ClusterCrossSlotError) or "CROSSSLOT" in said:
        return ConfigurationError(
            "this server is a node of a Redis Cluster and the client is a plain one; "
            "use redis.RedisCluster (or redis.asyncio.RedisCluster)",
            operation=script,
        )
    if isinstance(error, LuaScriptError) or is_transient(error):
        return error
    if "NOSTATE in " in said:
        return StateMissingError(f"Redis refused {script}: {said}", operation=script)
    if "STATEVERSION " in said:
        version = said.partition("STATEVERSION ")[2].partition(" in ")[0]
        return StateVersionError(
            f"what Redis holds of this queue has version {version!r}, and this release reads version 1; nothing was "
            "changed: upgrade this library, or use a release that reads that version",
            operation=script,
        )
    refusal = not_permitted(error, script)
    if refusal is not None:
        return refusal
    return LuaScriptError(f"Redis refused {script}: {said}", operation=script)


def not_permitted(error: Exception, operation: str) -> NotPermittedError | None:
    """A refusal by the server's access control list that says what to grant; None for any other error."""
    said = str(error)
    in_script = any(words in said for words in _FORBIDDEN_IN_SCRIPT)
    named = _FORBIDDEN_COMMAND.search(said)
    if not (in_script or named or isinstance(error, exceptions.NoPermissionError)):
        return None
    if named or "this command" in said:
        commands = (named[1],) if named else _commands_at(said, operation)
        what = f"run {' or '.join(one.upper() for one in commands) or 'a command'}"
        grant = " ".join(f"+{one.lower()}" for one in commands)
    else:
        what, grant = "access a key", "~<queue>::*, with the name of the queue"
    after = "; the script was stopped there, and what it had done before stays done" if in_script else ""
    return NotPermittedError(
        f"the Redis user of this client may not {what}, which {operation} needs; grant it: ACL SETUSER <user> {grant} "
        f"(`rmq doctor` checks all that a user needs){after}",
        operation=operation,
    )


def with_advice(answers: list[Any], commands: tuple[tuple[Argument, ...], ...]) -> list[Any]:
    """The answers to plain commands; a refusal by the access control list says what to grant."""
    return [_advised(answer, str(words[0])) for answer, words in zip(answers, commands, strict=True)]


def _advised(answer: Any, command: str) -> Any:
    if isinstance(answer, list) and command == "EXEC":
        return [_advised(one, "a transaction") for one in answer]
    refusal = not_permitted(answer, command) if isinstance(answer, exceptions.ResponseError) else None
    if refusal is None:
        return answer
    refusal.__cause__ = answer
    return refusal


def _commands_at(said: str, name: str) -> tuple[str, ...]:
    """Redis 6.2 tells the line, not the command, and the digest of the script unless the script returned the error."""
    place = _PLACE_IN_SCRIPT.search(said)
    if place is None:
        return ()
    digest, line = place.groups()
    found = [one for one in map(script_of, all_names()) if (one.sha == digest if digest else one.name == name)]
    return found[0].commands_in(int(line)) if found else ()


def any_is_read_only(answers: list[Any]) -> bool:
    """Whether a server that became a replica has refused one of them."""
    return any(isinstance(answer, Exception) and is_read_only(answer) for answer in answers)


def has_moved(answers: list[Any]) -> bool:
    """Whether a cluster node has sent us elsewhere."""
    return any(isinstance(answer, exceptions.MovedError | exceptions.AskError) for answer in answers)


def pack(command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> bytes:
    """An EVALSHA in the Redis protocol; what never changes was packed before."""
    halves = command.packed.get(len(open_keys))
    if halves is None:
        halves = command.packed[len(open_keys)] = _pack_constants(command, len(open_keys))
    before, after = halves
    count = 3 + len(command.keys) + len(open_keys) + len(command.settings) + len(arguments)
    return b"".join((b"*%d\r\n" % count, before, *map(_bulk, open_keys), after, *map(_bulk, arguments)))


def pack_words(words: tuple[Argument, ...]) -> bytes:
    """A whole command in the Redis protocol."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(_bulk, words)))


def _pack_constants(command: Command, open_keys: int) -> tuple[bytes, bytes]:
    key_count = len(command.keys) + open_keys
    before: tuple[Argument, ...] = ("EVALSHA", command.script.sha, key_count, *command.keys)
    return b"".join(map(_bulk, before)), b"".join(map(_bulk, command.settings))


def _bulk(value: Argument) -> bytes:
    data = to_bytes(value)
    return b"$%d\r\n%b\r\n" % (len(data), data)


def to_bytes(value: Argument) -> bytes:
    """What goes over the wire. Not left to the client: its encoding must not decide what a key is called."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else b"%d" % value


def blpop(bell: str, seconds: float) -> tuple[Argument, ...]:
    """A BLPOP that ends: a timeout that rounds to 0 would block for ever, so no wait is shorter than a millisecond."""
    return ("BLPOP", bell, f"{max(seconds, 0.001):.6f}")


def words(
    verb: str, head: str, command: Command, open_keys: tuple[str, ...], arguments: tuple[Argument, ...]
) -> tuple[Any, ...]:
    """The same command for a client that packs by itself: EVALSHA with a digest, or EVAL with the source."""
    key_count = len(command.keys) + len(open_keys)
    parts = (*command.keys, *open_keys, *command.settings, *arguments)
    return (verb, head, key_count, *map(to_bytes, parts))


def refuse_unusable_client(client: Any, *, asynchronous: bool) -> None:
    """Raise for a client that this queue could not work with, before it is used."""
    wanted = "redis.asyncio.Redis or RedisCluster" if asynchronous else "redis.Redis or RedisCluster"
    if isinstance(client, redis.sentinel.Sentinel | redis.asyncio.sentinel.Sentinel):
        raise ConfigurationTypeError(
            "client is a Sentinel manager, which sends no commands itself; pass sentinel.master_for(name)"
        )
    async_classes = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
    sync_classes = (redis.Redis, redis.RedisCluster)
    if isinstance(client, sync_classes if asynchronous else async_classes):
        other = "redis_message_queue" if asynchronous else "redis_message_queue.asyncio"
        raise ConfigurationTypeError(
            f"client is a {type(client).__module__}.{type(client).__name__}; this queue needs a {wanted}, "
            f"or use RedisMessageQueue from {other}"
        )
    if not hasattr(client, "execute_command"):
        raise ConfigurationTypeError(f"client must be a {wanted}, not {type(client).__name__}")
    if getattr(client, "connection", None) is not None or getattr(client, "single_connection_client", False):
        raise ConfigurationError(
            "client was made with single_connection_client=True and would share one socket between a "
            "consumer and its heartbeat; pass a client with a connection pool"
        )


def is_cluster(client: Any) -> bool:
    """Whether keys must share a hash tag."""
    return isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)


def is_read_only(error: BaseException) -> bool:
    """Whether the server became a replica: whoever connects anew finds the primary."""
    return isinstance(error, exceptions.ReadOnlyError) or "READONLY" in str(error)


def decodes(client: Any) -> bool:
    """Whether the client's user asked for text."""
    get_encoder = getattr(client, "get_encoder", None)
    return bool(get_encoder().decode_responses) if get_encoder is not None else False


def connection_settings(client: Any) -> dict[str, Any]:
    """The keyword arguments that the client makes its connections with."""
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None) or getattr(client, "connection_kwargs", None)
    if settings is None and isinstance(client, redis.RedisCluster):
        settings = cast(Any, client).get_connection_kwargs()  # the only way that works before the first command
    return dict(settings or {})


def primary_of(client: Any) -> Any:
    """The address that Sentinel gave to the client's connections; None where no Sentinel was asked."""
    return getattr(getattr(client, "connection_pool", None), "master_address", None)


def socket_timeout(client: Any) -> float | None:
    """How long the client listens for one answer; None for as long as it takes."""
    settings = connection_settings(client)
    if "socket_timeout" in settings:
        seconds = settings["socket_timeout"]
    else:
        seconds = _DEFAULT_TIMEOUTS[isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster)]
    # redis-py takes whatever it is given; a socket with a limit of 0 does not block at all.
    return float(seconds) if _is_number(seconds) and seconds > 0 else None


def address(client: Any) -> str:
    """Where the client looks for its server, for people to read: never a user name or a password."""
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
    """How many seconds the client may go on repeating one command by itself, at the most.

    A client that listens without a limit, that repeats for ever, or whose rules are not redis-py's own counts as an
    hour.
    """
    settings = connection_settings(client)
    timeout = socket_timeout(client)
    retries, pause = _repetition(settings, client)
    if timeout is None or retries is None or pause is None:
        return _LONGEST_WINDOW
    connecting = settings.get("socket_connect_timeout")
    connecting = timeout if not _is_number(connecting) else float(connecting)
    pool_wait = getattr(getattr(client, "connection_pool", None), "timeout", 0.0)
    attempts = retries + 1
    # Each attempt may have to connect first, and connecting is repeated by the same rule.
    one = timeout + pause + attempts * (connecting + pause) + (pool_wait if _is_number(pool_wait) else 0.0)
    return min(_LONGEST_WINDOW, attempts * one)


def _repetition(settings: dict[str, Any], client: Any) -> tuple[int | None, float | None]:
    """How often a client repeats a command, and its longest pause; None for what has no known end."""
    retry = settings.get("retry") or getattr(client, "retry", None)
    if retry is None:
        return int(bool(settings.get("retry_on_error") or settings.get("retry_on_timeout"))), 0.0
    if plain_class(type(retry)) not in _KNOWN_RETRIES:
        return None, None
    retries, backoff = getattr(retry, "_retries", None), getattr(retry, "_backoff", None)
    if not isinstance(retries, int) or retries < 0:
        return None, None
    if not type(backoff).__module__.startswith("redis."):
        return retries, None if retries else 0.0
    longest = getattr(backoff, "_cap", getattr(backoff, "_backoff", None))
    return retries, float(longest) if _is_number(longest) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def close_idle_connections(client: Any) -> None:
    """Close every pooled connection that nobody uses; they open again when they are wanted."""
    nodes = [node.redis_connection for node in client.get_nodes()] if is_cluster(client) else [client]
    for node in nodes:
        pool = getattr(node, "connection_pool", None)
        if pool is not None:
            pool.disconnect(inuse_connections=False)


def locks_of(client: Any) -> Iterator[Any]:
    """Every lock inside a client, whatever redis-py calls it."""
    seen: set[int] = set()
    ahead = [client]
    while ahead:
        each = ahead.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _LOCKS):
            yield each
        elif isinstance(each, dict):
            ahead += each.values()
        elif isinstance(each, list | tuple | set):
            ahead += each
        elif each is client or type(each).__module__.partition(".")[0] == "redis":
            ahead += getattr(each, "__dict__", {}).values()


def is_plain(client: Any, kind: Any, pools: tuple[type, ...], connections: tuple[type, ...]) -> bool:
    """Whether commands may be packed by hand: a pooled client of redis-py itself, that nobody instruments."""
    if type(client) is not kind or getattr(client, "_single_connection_client", False):
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
