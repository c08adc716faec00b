"""Removes messages from a queue for good."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Literal

from redis_message_queue.process.identity import is_gone, is_of_this_host, is_of_this_process
from redis_message_queue.protocol.calls import Calls, ReplySlot
from redis_message_queue.protocol.consume.holding import held_without_lease
from redis_message_queue.protocol.operate.pages import (
    FIRST_SCAN,
    PAGE,
    TENANTS,
    PageReader,
    check_choice,
    scanned_pairs,
)
from redis_message_queue.protocol.port import Argument
from redis_message_queue.stored import envelope
from redis_message_queue.stored.bounds import MAX_BYTES, MAX_MESSAGES
from redis_message_queue.stored.envelope import tenant_name
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.plain_values import is_text

PurgeTarget = Literal["pending", "delayed", "completed", "failed", "dead_letters", "orphans"]

_ORPHANED_AFTER_US = 86_400_000_000  # when a process on another host counts as ended


class Purger:
    """Removes all messages of one kind, a bounded step at a time."""

    def __init__(self, calls: Calls, pages: PageReader) -> None:
        self._calls = calls
        self._keys = calls.keys
        self._pages = pages

    async def purge(self, target: str) -> int:
        """Remove everything of one kind. Returns how many messages were removed."""
        if is_text(target) and target == "processing":
            raise ConfigurationError(
                "purge refuses 'processing': consumers are working on these messages; purge 'orphans' for those that "
                "a consumer without leases has left behind"
            )
        check_choice("target", target, PurgeTarget)
        if target in self._pages.lists:
            return await self._sweep(target, "list", lists=self._pages.lists[target])
        if target == "orphans":
            return await self._purge_orphans()
        began = await self._pages.server_time()
        if target == "delayed":
            return await self._sweep(target, "delayed", began=began)
        return await self._sweep_tenants((b"", *await self._waiting_tenants()), began)

    async def delete_tenant_queue(self, tenant: str) -> int:
        """Remove what waits for one tenant. Returns how many messages were removed."""
        return await self._sweep_tenants((tenant_name(tenant),), await self._pages.server_time(), "deleted")

    async def _purge_orphans(self) -> int:
        """Remove messages that consumers without leases have left in flight, and that no handler works on."""
        if held_without_lease:
            gc.collect()  # nobody works on a batch that is garbage, even if its block was never left
        removed, cursor, now, count, largest = 0, b"0", await self._pages.server_time(), FIRST_SCAN, 1
        while True:
            ((cursor, page),) = await self._pages.send(("HSCAN", self._keys.processing, cursor, "COUNT", count))
            found = scanned_pairs(page)
            largest = max(largest, *(len(stored) for _, stored in found), 1)
            count = max(1, min(PAGE, MAX_BYTES // largest))
            orphans = [token for token, stored in found if _is_orphan(token, stored, now)]
            for start in range(0, len(orphans), MAX_MESSAGES):
                tokens = b"".join(orphans[start : start + MAX_MESSAGES])
                removed += await self._sweep("orphans", "orphans", cursor=tokens)
            if cursor == b"0":
                return removed

    async def _waiting_tenants(self) -> list[bytes]:
        """Return the tenants with waiting messages. Those that come later are left out, or it might never end."""
        names: dict[bytes, None] = {}
        cursor = b"0"
        while True:
            ((cursor, scanned),) = await self._pages.send(("ZSCAN", self._keys.tenant_ring, cursor, "COUNT", PAGE))
            names.update((name, None) for name, _ in scanned_pairs(scanned) if name)
            if cursor == b"0":
                return list(names)

    async def _sweep_tenants(self, tenants: Sequence[bytes], began: int, event: str = "purged") -> int:
        """Remove what waits in the queues of these tenants, except what was published after the purge ``began``."""
        slot, removed, done = self._calls.acquire_slot(), 0, 0
        try:
            while done < len(tenants):
                first, *others = tenants[done : done + TENANTS]
                count, tenants_done = await self._step(slot, (event, "pending", "pending", first, began, *others))
                removed += count
                done += int(tenants_done or 1 + len(others))
            return removed
        finally:
            self._calls.release_slot(slot)

    async def _sweep(
        self, target: str, what: str, *, began: int = 0, lists: tuple[str, ...] = (), cursor: bytes = b""
    ) -> int:
        """Remove delayed messages, a list or orphans, except what was published after the purge ``began``."""
        slot, removed, ids, more = self._calls.acquire_slot(), 0, b"", True
        try:
            while more:
                arguments = ("purged", target, what, cursor, began, *((ids,) if ids else ()))
                count, more_to_do = await self._step(slot, arguments, lists)
                removed += count
                more = bool(more_to_do)
                cursor, _, ids = more_to_do.partition(b" ")
            return removed
        finally:
            self._calls.release_slot(slot)

    async def _step(
        self, slot: ReplySlot, arguments: tuple[Argument, ...], lists: tuple[str, ...] = ()
    ) -> tuple[int, bytes]:
        """Make one numbered call, so that a step that arrives late removes nothing newer.

        Returns how many messages were removed, and what the script says about the next step.
        """
        command = self._calls.command("sweep", slot, self._keys.tenant_pending(""), self._keys.expired(""))
        reply = await self._calls.call(command, (slot.next_call(), *arguments), extra_keys=lists)
        count, _, more_to_do = reply.partition(b" ")
        return int(count), more_to_do


def _is_orphan(token: bytes, stored: bytes, now_us: int) -> bool:
    """Return whether nobody works on a message that was claimed without a lease.

    Its consumer has ended or let go of it. Nothing is known about a process on another host, so its messages count as
    orphans a day after they were published.
    """
    if len(token) != envelope.TOKEN_BYTES or token in held_without_lease:
        return False
    slot_name = token[envelope.ID_BYTES :]
    if is_of_this_process(slot_name) or is_gone(slot_name):
        return True
    published_us = int.from_bytes(stored[envelope.TIME_AT : envelope.HEADER_BYTES], "big")
    return not is_of_this_host(slot_name) and published_us < now_us - _ORPHANED_AFTER_US
