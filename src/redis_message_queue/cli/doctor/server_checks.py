"""What can be wrong with one server: its version, its disk, its memory, its replicas, its connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis_message_queue.cli.doctor.finding import Finding, advice, ok, problem
from redis_message_queue.cli.doctor.patient import Patient

LEAST_VERSION = (6, 2)
_FULL, _NEARLY_FULL = 0.95, 0.80
_FRAGMENTED = 1.5
_WORTH_IT_BYTES = 32 << 20  # a smaller server has a poor ratio whatever it does
_BEHIND_BYTES = 1 << 20
_SHORT_IDLE_SECONDS = 60
_SLOW_FORK_SECONDS = 0.25
_MEGABYTE = 1 << 20


def version(patient: Patient) -> Iterator[Finding]:
    """Redis 6.2 is the first with the commands that the scripts use."""
    flavour = "Valkey" if "valkey_version" in patient.info else "Redis"
    number = str(patient.info.get("valkey_version") or patient.info.get("redis_version", "unknown"))
    compatible = str(patient.info.get("redis_version", number))
    parts = tuple(int(part) for part in compatible.split(".")[:2] if part.isdecimal())
    if parts < LEAST_VERSION:
        yield problem("version", f"{flavour} {number}", "use Redis 6.2 or newer, or any Valkey")
    else:
        yield ok("version", f"{flavour} {number}")


def persistence(patient: Patient) -> Iterator[Finding]:
    """What a restart of the server takes with it."""
    info, found = patient.info, "persistence"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem(
            found, "the last snapshot could not be written", "look into the server's log: the disk is full or read-only"
        )
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield problem(
            found, "the append-only file could not be written", "look into the server's log, then at its disk"
        )
    yield _append_only(patient) if patient.number("aof_enabled") else _snapshots(patient)
    fork_seconds = patient.number("latest_fork_usec") / 1_000_000
    if fork_seconds > _SLOW_FORK_SECONDS:
        yield advice(
            found,
            f"the last fork stopped everybody for {fork_seconds:.2f} s",
            "switch transparent huge pages off, or let a replica write the snapshots",
        )


def _append_only(patient: Patient) -> Finding:
    policy = patient.setting("appendfsync", "unknown")
    if policy == "no":
        return advice(
            "persistence",
            "append-only file, written to the disk when the system likes",
            "set appendfsync everysec, or always",
        )
    if policy == "everysec":
        return ok("persistence", "append-only file, on the disk every second; confirm_fsync=True waits for it")
    return ok("persistence", f"append-only file, appendfsync {policy}")


def _snapshots(patient: Patient) -> Finding:
    if patient.settings is None:
        return advice("persistence", "no append-only file; the settings are not for us to read", "set appendonly yes")
    if patient.setting("save"):
        return advice(
            "persistence",
            f"snapshots alone (save {patient.setting('save')})",
            "set appendonly yes: a crash loses everything since the last snapshot",
        )
    return problem("persistence", "none: a restart loses every message", "set appendonly yes and appendfsync everysec")


def eviction(patient: Patient) -> Iterator[Finding]:
    """A server that throws keys away throws messages away, or what keeps them from being doubled."""
    policy = str(patient.info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        yield ok("eviction", policy)
    elif not patient.max_memory:
        yield advice("eviction", f"{policy}, without effect while maxmemory is 0", "set maxmemory-policy noeviction")
    else:
        lost = "whole lines of messages" if policy.startswith("allkeys") else "what keeps messages from being doubled"
        yield problem("eviction", f"{policy}: a full server throws away {lost}", "set maxmemory-policy noeviction")


def memory(patient: Patient) -> Iterator[Finding]:
    """How much is left, and how much is wasted."""
    yield _headroom(patient)
    used, resident = patient.number("used_memory"), patient.number("used_memory_rss")
    if used > _WORTH_IT_BYTES and resident > _FRAGMENTED * used:
        yield advice(
            "memory",
            f"fragmented: {resident // _MEGABYTE:,} MB in use for {used // _MEGABYTE:,} MB of data",
            "set activedefrag yes, or restart the server when it is quiet",
        )


def _headroom(patient: Patient) -> Finding:
    used, limit = patient.number("used_memory"), patient.max_memory
    if not limit:
        machine = patient.number("total_system_memory")
        found = f"{used / _MEGABYTE:,.0f} MB used, no limit"
        if machine and patient.number("used_memory_rss") > _NEARLY_FULL * machine:
            return problem("memory", f"{found}, and the machine is nearly full", "add memory, then set maxmemory")
        return advice(
            "memory",
            found,
            "set maxmemory below what the machine has: a full queue then refuses, and the kernel kills nobody",
        )
    share = used / limit
    found = f"{used / _MEGABYTE:,.0f} of {limit / _MEGABYTE:,.0f} MB used ({share:.0%})"
    if share > _FULL:
        return problem("memory", found, "raise maxmemory, or consume: publishes will be refused")
    if share > _NEARLY_FULL:
        return advice("memory", found, "raise maxmemory, or limit the queues with max_pending_length")
    return ok("memory", found)


def replicas(patient: Patient) -> Iterator[Finding]:
    """Whether somebody has a copy, and whether the primary cares."""
    if patient.info.get("role") != "master":
        yield problem("replicas", "this server is a replica: it takes no messages", "give the URL of its primary")
        return
    copies = [value for name, value in patient.info.items() if _is_replica(name, value)]
    if not copies:
        yield advice("replicas", "none: if this machine is lost, its messages are", "add a replica, or keep backups")
        return
    yield from _lag(patient, copies)
    if patient.settings is None:
        yield ok("replicas", f"{len(copies)}; the settings are not for us to read")
    elif int(patient.setting("min-replicas-to-write", "0")) == 0:
        yield advice(
            "replicas",
            f"{len(copies)}, and the primary takes messages without them too",
            "set min-replicas-to-write 1, or publish with confirm_replicas=1",
        )
    else:
        yield ok("replicas", f"{len(copies)}, at least {patient.setting('min-replicas-to-write')} needed for a write")


def _is_replica(name: str, value: object) -> bool:
    return name.startswith("slave") and name[5:].isdecimal() and isinstance(value, dict)


def _lag(patient: Patient, copies: list[dict[str, object]]) -> Iterator[Finding]:
    longest = int(patient.setting("min-replicas-max-lag", "10"))
    for copy in copies:
        name = f"{copy.get('ip')}:{copy.get('port')}"
        behind = patient.number("master_repl_offset") - int(str(copy.get("offset", 0)))
        silent = int(str(copy.get("lag", 0)))
        if copy.get("state") != "online":
            yield advice("replicas", f"{name} is copying ({copy.get('state')})", "wait until it is online")
        elif silent > longest or behind > _BEHIND_BYTES:
            yield problem(
                "replicas",
                f"{name} is {behind:,} bytes and {silent} s behind",
                "look at that machine and its network: a failover to it would lose messages",
            )


def connections(patient: Patient) -> Iterator[Finding]:
    """Whether waiting consumers are left in peace."""
    clients, most = patient.number("connected_clients"), int(patient.setting("maxclients", "0"))
    found = f"{clients:,} clients" + (f" of {most:,}" if most else "")
    if most and clients > _NEARLY_FULL * most:
        yield advice("connections", found, "raise maxclients: a consumer needs two connections")
    else:
        yield ok("connections", found)
    idle = int(patient.setting("timeout", "0"))
    if 0 < idle < _SHORT_IDLE_SECONDS:
        yield advice(
            "connections",
            f"the server closes connections that are idle for {idle} s",
            f"set timeout 0, or {_SHORT_IDLE_SECONDS} at the least: they only have to be opened again",
        )
    if patient.settings is not None and patient.setting("tcp-keepalive", "300") == "0":
        yield advice(
            "connections",
            "the server keeps the connections of machines that have gone",
            "set tcp-keepalive 300",
        )


def settings(patient: Patient) -> Iterator[Finding]:
    """Whether the rest was seen at all."""
    if patient.settings is None:
        yield advice(
            "settings",
            "CONFIG GET is not permitted: appendfsync, save, timeouts and limits were not seen",
            "look at them where the server is managed",
        )


CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    *(version, settings, persistence, eviction, memory, replicas, connections),
)


def everything(node: Any) -> Iterator[Finding]:
    """All of them, for one server."""
    patient = Patient(node)
    for check in CHECKS:
        yield from check(patient)
