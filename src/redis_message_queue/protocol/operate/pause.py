"""Pauses and resumes a queue or one of its tenants: fields of the state that every claim reads with the version."""

from __future__ import annotations

import logging
from datetime import datetime

from redis_message_queue.protocol.calls import Calls, ReplySlot
from redis_message_queue.protocol.operate.pages import PAGE, PageReader, check_count, scanned_pairs
from redis_message_queue.protocol.port import Call
from redis_message_queue.stored import envelope
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.values.messages import moment

log = logging.getLogger("redis_message_queue")

_QUEUE = b"paused"  # the field of a queue: when, in microseconds of the server's clock
_TENANT = b"paused:"  # what the field of a tenant begins with


class Pauser:
    """Pauses and resumes a queue or a tenant. Each call is numbered, and can be repeated."""

    def __init__(self, calls: Calls, pages: PageReader) -> None:
        self._calls = calls
        self._pages = pages

    async def is_paused(self, tenant: str | None = None) -> bool:
        """Return whether the queue, or the tenant, is paused."""
        field = _QUEUE if tenant is None else _TENANT + tenant_name(tenant)
        (paused,) = await self._pages.send(("HMGET", self._calls.keys.meta, field))
        return paused[0] is not None

    async def paused_tenants(self, max_tenants: int) -> dict[str, datetime]:
        """Return the tenants that are paused, and since when."""
        check_count("max_tenants", max_tenants)
        found: dict[str, datetime] = {}
        cursor = b"0"
        while len(found) < max_tenants:
            scan = ("HSCAN", self._calls.keys.meta, cursor, "MATCH", _TENANT + b"*", "COUNT", PAGE)
            ((cursor, scanned),) = await self._pages.send(scan)
            for field, since in scanned_pairs(scanned):
                name = envelope.tenant_text(field.removeprefix(_TENANT))
                found[name] = moment(int(since) / 1_000_000 if since.isdigit() and len(since) < 20 else 0)
            if cursor == b"0":
                break
        return dict(sorted(found.items())[:max_tenants])

    async def send(self, tenant: str | None, *, pauses: bool) -> bool:
        """Pause or resume without a log line. Returns whether that changed anything."""
        calls, keys = self._calls, self._calls.keys
        name = b"" if tenant is None else tenant_name(tenant)

        def pause(slot: ReplySlot) -> Call:
            command = calls.command("pause", slot, keys.tenant_pending(""), keys.expired(""))
            return command, (), (slot.next_call(), int(pauses), name)

        return bool(await calls.numbered(pause) == b"1")

    def log_change(self, tenant: str | None, *, pauses: bool) -> None:
        """Say that the queue or one of its tenants is paused, or resumed."""
        whose = "the queue" if tenant is None else f"the tenant {tenant}"
        done = "paused; consumers claim nothing of it until it is resumed" if pauses else "resumed"
        log.warning("%s: %s is %s", self._calls.keys.prefix, whose, done)
