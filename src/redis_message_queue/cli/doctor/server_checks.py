"""Checks one server: version, persistence, memory, replicas, connections, clock and latency; and a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

import redis
from redis.exceptions import ResponseError

from redis_message_queue.cli.clients import text_of, time_at
from redis_message_queue.cli.doctor.check_result import CheckResult, advice, ok, problem, report_refusals
from redis_message_queue.redis_py import wire

LEAST_VERSION = (6, 2)
_SETTINGS = (
    *("maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "save", "timeout", "tcp-keepalive", "maxclients"),
    *("min-replicas-to-write", "min-replicas-max-lag"),
)
_FULL, _NEARLY_FULL = 0.95, 0.80
_FRAGMENTED = 1.5
_LEAST_FRAGMENTED_BYTES = 32 << 20  # the ratio of a smaller server is always poor
_BEHIND_BYTES = 1 << 20
_SHORT_IDLE_SECONDS = 60
_SLOW_FORK_SECONDS = 0.25
_SHORT_TIMEOUT_SECONDS = 1.0
_MEGABYTE = 1 << 20
_SLOTS = 16_384
_SAMPLES = 20
_SAMPLE_PAUSE_SECONDS = 0.02
_CLOCK_OFFSET_SECONDS = 1.0
_CLOCK_JUMP_SECONDS = 0.25  # besides what the round trip explains
_SLOW_SECONDS, _STALLED_SECONDS = 0.01, 0.1


@dataclass
class ServerInfo:
    """The report of a server about itself: its INFO and, if the user may read them, its settings."""

    node: Any
    info: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.info = self.node.info()

    @cached_property
    def settings(self) -> dict[str, str] | None:
        """None if the user may not run CONFIG, as on most managed servers."""
        try:
            return {name: text_of(self.node.config_get(name).get(name, "")) for name in _SETTINGS}
        except ResponseError:  # no permission, or no such command
            return None

    def setting(self, name: str, default: str = "") -> str:
        return (self.settings or {}).get(name, default)

    def number(self, name: str) -> int:
        """Return a number of INFO, 0 if this server has none."""
        return int(self.info.get(name, 0))

    @property
    def max_memory(self) -> int:
        return self.number("maxmemory")


def version(server: ServerInfo) -> Iterator[CheckResult]:
    """Redis 6.2 is the first version with the commands that the scripts use."""
    flavour = "Valkey" if "valkey_version" in server.info else "Redis"
    number = str(server.info.get("valkey_version") or server.info.get("redis_version", "unknown"))
    compatible = str(server.info.get("redis_version", number))
    parts = tuple(int(part) for part in compatible.split(".")[:2] if part.isdecimal())
    if parts < LEAST_VERSION:
        yield problem("version", f"{flavour} {number}", "use Redis 6.2 or newer, or any Valkey")
    else:
        yield ok("version", f"{flavour} {number}")


def settings(server: ServerInfo) -> Iterator[CheckResult]:
    """Whether the settings could be read."""
    if server.settings is None:
        yield advice(
            "settings",
            "CONFIG GET is not permitted: appendfsync, save, timeouts and limits were not checked",
            "check them in the console of your provider",
        )


def persistence(server: ServerInfo) -> Iterator[CheckResult]:
    """A restart of the server loses messages that were not persisted."""
    if server.info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem(
            "persistence",
            "the last snapshot could not be written",
            "see the server's log: the disk may be full or read-only",
        )
    if (
        server.info.get("aof_last_write_status", "ok") != "ok"
        or server.info.get("aof_last_bgrewrite_status", "ok") != "ok"
    ):
        yield problem(
            "persistence", "the append-only file could not be written", "see the server's log, then check its disk"
        )
    yield _append_only(server) if server.number("aof_enabled") else _snapshots(server)
    fork_seconds = server.number("latest_fork_usec") / 1_000_000
    if fork_seconds > _SLOW_FORK_SECONDS:
        yield advice(
            "persistence",
            f"the last fork blocked the server for {fork_seconds:.2f} s",
            "disable transparent huge pages, or let a replica write the snapshots",
        )


def _append_only(server: ServerInfo) -> CheckResult:
    policy = server.setting("appendfsync", "unknown")
    if policy == "no":
        return advice(
            "persistence",
            "append-only file, flushed to disk when the operating system decides",
            "set appendfsync everysec, or always",
        )
    if policy == "everysec":
        return ok("persistence", "append-only file, flushed to disk every second; confirm_fsync=True waits for it")
    return ok("persistence", f"append-only file, appendfsync {policy}")


def _snapshots(server: ServerInfo) -> CheckResult:
    if server.settings is None:
        return advice("persistence", "no append-only file; the settings could not be read", "set appendonly yes")
    if server.setting("save"):
        return advice(
            "persistence",
            f"only snapshots (save {server.setting('save')})",
            "set appendonly yes: a crash loses everything since the last snapshot",
        )
    return problem("persistence", "none: a restart loses every message", "set appendonly yes and appendfsync everysec")


def eviction(server: ServerInfo) -> Iterator[CheckResult]:
    """A server that evicts keys loses messages, or the keys that prevent duplicates."""
    policy = str(server.info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        yield ok("eviction", policy)
    elif not server.max_memory:
        yield advice("eviction", f"{policy}, without effect while maxmemory is 0", "set maxmemory-policy noeviction")
    else:
        lost = "messages" if policy.startswith("allkeys") else "keys that prevent duplicates"
        yield problem("eviction", f"{policy}: a full server deletes {lost}", "set maxmemory-policy noeviction")


def memory(server: ServerInfo) -> Iterator[CheckResult]:
    """How much memory is left, and how much is wasted."""
    yield _headroom(server)
    used, resident = server.number("used_memory"), server.number("used_memory_rss")
    if used > _LEAST_FRAGMENTED_BYTES and resident > _FRAGMENTED * used:
        yield advice(
            "memory",
            f"fragmented: {resident // _MEGABYTE:,} MB in use for {used // _MEGABYTE:,} MB of data",
            "set activedefrag yes, or restart the server when it is quiet",
        )


def _headroom(server: ServerInfo) -> CheckResult:
    used, limit = server.number("used_memory"), server.max_memory
    if not limit:
        machine = server.number("total_system_memory")
        found = f"{used / _MEGABYTE:,.0f} MB used, no limit"
        if machine and server.number("used_memory_rss") > _NEARLY_FULL * machine:
            return problem("memory", f"{found}, and the machine is nearly full", "add memory, then set maxmemory")
        return advice(
            "memory",
            found,
            "set maxmemory below the memory of the machine: then a full server refuses to publish, and is not killed",
        )
    share = used / limit
    found = f"{used / _MEGABYTE:,.0f} of {limit / _MEGABYTE:,.0f} MB used ({share:.0%})"
    if share > _FULL:
        return problem("memory", found, "raise maxmemory, or consume messages: publishing will be refused")
    if share > _NEARLY_FULL:
        return advice("memory", found, "raise maxmemory, or limit the queues with max_pending_length")
    return ok("memory", found)


def replicas(server: ServerInfo) -> Iterator[CheckResult]:
    """Whether there are replicas, and whether the primary waits for them."""
    if server.info.get("role") != "master":
        yield problem("replicas", "this server is a replica: you cannot publish to it", "use the URL of its primary")
        return
    copies = [value for name, value in server.info.items() if _is_replica(name, value)]
    if not copies:
        yield advice(
            "replicas", "none: if you lose this machine, you lose its messages", "add a replica, or keep backups"
        )
        return
    yield from _lag(server, copies)
    if server.settings is None:
        yield ok("replicas", f"{len(copies)}; the settings could not be read")
    elif int(server.setting("min-replicas-to-write", "0")) == 0:
        yield advice(
            "replicas",
            f"{len(copies)}, and the primary accepts messages without them too",
            "set min-replicas-to-write 1, or publish with confirm_replicas=1",
        )
    else:
        yield ok("replicas", f"{len(copies)}, at least {server.setting('min-replicas-to-write')} needed for a write")


def _is_replica(name: str, value: object) -> bool:
    return name.startswith("slave") and name[5:].isdecimal() and isinstance(value, dict)


def _lag(server: ServerInfo, copies: list[dict[str, object]]) -> Iterator[CheckResult]:
    longest = int(server.setting("min-replicas-max-lag", "10"))
    for copy in copies:
        name = f"{copy.get('ip')}:{copy.get('port')}"
        behind = server.number("master_repl_offset") - int(str(copy.get("offset", 0)))
        silent = int(str(copy.get("lag", 0)))
        if copy.get("state") != "online":
            yield advice("replicas", f"{name} is synchronizing ({copy.get('state')})", "wait until it is online")
        elif silent > longest or behind > _BEHIND_BYTES:
            yield problem(
                "replicas",
                f"{name} is {behind:,} bytes and {silent} s behind",
                "check that machine and its network: a failover to it would lose messages",
            )


def connections(server: ServerInfo) -> Iterator[CheckResult]:
    """Whether there are enough connections, and whether idle ones stay open."""
    clients, most = server.number("connected_clients"), int(server.setting("maxclients", "0"))
    found = f"{clients:,} connected" + (f" of {most:,}" if most else "")
    if most and clients > _NEARLY_FULL * most:
        yield advice("connections", found, "raise maxclients: a consumer needs two connections")
    else:
        yield ok("connections", found)
    idle = int(server.setting("timeout", "0"))
    if 0 < idle < _SHORT_IDLE_SECONDS:
        yield advice(
            "connections",
            f"the server closes connections that are idle for {idle} s",
            f"set timeout 0, or at least {_SHORT_IDLE_SECONDS}: waiting consumers have to reconnect each time",
        )
    if server.settings is not None and server.setting("tcp-keepalive", "300") == "0":
        yield advice(
            "connections",
            "the server keeps connections to machines that are gone",
            "set tcp-keepalive 300",
        )


CHECKS: tuple[Callable[[ServerInfo], Iterator[CheckResult]], ...] = (
    *(version, settings, persistence, eviction, memory, replicas, connections),
)


def check_server(node: Any) -> Iterator[CheckResult]:
    """Run all checks of one server."""
    yield from _check_info(node)
    yield from check_clock(node)
    yield from check_latency(node)


@report_refusals("server")
def _check_info(node: Any) -> Iterator[CheckResult]:
    server = ServerInfo(node)
    for check in CHECKS:
        yield from check(server)


@report_refusals("clock")
def check_clock(
    node: Any, now: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Iterator[CheckResult]:
    """Check the clock that leases and delays depend on. The round trip is the uncertainty of each sample."""
    offsets: list[float] = []
    drifts: list[tuple[float, float]] = []  # against our monotonic clock, which nobody adjusts; with the uncertainty
    for _ in range(_SAMPLES):
        before, sent = now(), steady()
        theirs = time_at(node).timestamp()
        received = steady()
        offsets.append(theirs - (before + (received - sent) / 2))
        drifts.append((theirs - (sent + received) / 2, (received - sent) / 2))
        time.sleep(_SAMPLE_PAUSE_SECONDS)
    first, uncertainty = drifts[0]
    jump = max(abs(drift - first) - more - uncertainty for drift, more in drifts)
    if jump > _CLOCK_JUMP_SECONDS:
        yield problem(
            "clock",
            f"the server's clock jumped by {jump:.1f} s during the check",
            "let chrony or ntpd slew it: when it jumps, leases end too early or too late",
        )
    else:
        yield ok("clock", "the server's clock runs evenly")
    offset = median(offsets)
    if abs(offset) < _CLOCK_OFFSET_SECONDS:
        yield ok("clock", f"{offset * 1000:+.0f} ms from this machine's")
    else:
        yield advice(
            "clock",
            f"{offset:+,.1f} s from this machine's",
            "run chrony or ntpd on both: leases use only the server's clock, but publish(at=...) uses yours",
        )


@report_refusals("latency")
def check_latency(node: Any, steady: Callable[[], float] = time.monotonic) -> Iterator[CheckResult]:
    """Measure the round trip of a command."""
    trips: list[float] = []
    for _ in range(_SAMPLES):
        sent = steady()
        node.ping()
        trips.append(steady() - sent)
    middle, longest = median(trips), max(trips)
    found = f"round trip {middle * 1000:.1f} ms, the longest of {_SAMPLES} {longest * 1000:.1f} ms"
    if middle > _SLOW_SECONDS:
        yield advice("latency", found, "run the consumers closer to it, or claim in batches: run(prefetch=100)")
    elif longest > _STALLED_SECONDS:
        yield advice("latency", found, "look for slow commands (SLOWLOG GET), forks and swapping")
    else:
        yield ok("latency", found)


def nodes_of(client: Any) -> list[tuple[str, Any]]:
    """Return the primaries of a cluster with a plain client of each; nothing for a single server."""
    if not isinstance(client, redis.RedisCluster):
        return []
    cluster: Any = client  # redis-py has no types here
    nodes = sorted(cluster.get_primaries(), key=lambda node: str(node.name))
    return [(node.name, cluster.get_redis_connection(node)) for node in nodes]


@report_refusals("cluster")
def check_cluster(client: Any) -> Iterator[CheckResult]:
    """Ask every primary whether all slots are served."""
    nodes = nodes_of(client)
    if not nodes:
        yield ok("cluster", "not a cluster: one server has all keys")
        return
    healthy = True
    for name, node in nodes:
        info = node.cluster("INFO")
        state, served = info["cluster_state"], int(info["cluster_slots_ok"])
        if state != "ok" or served < _SLOTS:
            healthy = False
            yield problem(
                "cluster",
                f"according to {name}: state {state}, {served:,} of {_SLOTS:,} slots served",
                "see CLUSTER NODES for the missing node; bring it back, or promote its replica",
            )
    if healthy:
        yield ok("cluster", "all slots are served; the keys of a queue share a hash tag, and so a slot")


def check_timeouts(client: Any) -> Iterator[CheckResult]:
    """A blocking read ends at 0.8 of a short socket timeout, and is sent again."""
    seconds = wire.connection_settings(client).get("socket_timeout")
    if seconds is not None and seconds < _SHORT_TIMEOUT_SECONDS:
        yield advice(
            "timeouts",
            f"socket_timeout is {seconds:g} s: an idle consumer polls {1 / (0.8 * seconds):.0f} times a second",
            "set it to 2 s or more: then an idle consumer polls once a second",
        )
    else:
        yield ok("timeouts", "the socket timeout is long enough for a waiting consumer")
