"""How a message leaves: acknowledged, kept in a list, or given back, by its holder alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.claim import Claim
from redis_message_queue.protocol.port import Argument, Command
from redis_message_queue.scripts import script


@dataclass(frozen=True, slots=True)
class Keep:
    """The list that a payload goes to, and its longest length (None: any)."""

    key: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    """Whether the message was still ours to settle, and what trimming complained about."""

    held: bool
    trim_error: str | None = None


_SETTLED = Settled(True)


class Settler:
    """Settles and renews what a consumer of this queue object holds."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        lease_us = int((calls.options.message_visibility_timeout_seconds or 0) * 1_000_000)
        self._renew = Command(script("renew"), (calls.keys.leases, calls.keys.deliveries), (lease_us,))

    async def settle(
        self, claim: Claim, keep: Keep | None, cancellations: list[BaseException] | None = None
    ) -> Settled:
        """The message leaves the queue, into ``keep`` or for good; cancellations are noted and do not stop it."""
        limit, open_keys = (0, ()) if keep is None else (keep.limit or 0, (keep.key,))
        slot = self._calls.borrow()
        try:
            arguments: tuple[Argument, ...] = (limit, slot.next_call(), claim.id, claim.lease)
            reply = await self._call_through(slot.settle, arguments, open_keys, cancellations)
        finally:
            self._calls.give_back(slot)
        if reply == b"1":
            return _SETTLED
        return Settled(reply[:1] == b"1", reply[1:].decode("utf-8", "replace") or None)

    async def _call_through(
        self,
        command: Command,
        arguments: tuple[Argument, ...],
        open_keys: tuple[str, ...],
        cancellations: list[BaseException] | None,
    ) -> Any:
        """Until it is answered: a cancellation cuts the call short, so it is sent again under the same number.

        That is what the numbers are for, and it costs nothing where nobody cancels, unlike a task of its own for
        each call.
        """
        while True:
            try:
                return await self._calls.call(command, arguments, open_keys=open_keys)
            except BaseException as error:
                if cancellations is None or not self._calls.port.is_cancellation(error):
                    raise
                cancellations.append(error)

    async def give_back(self, claim: Claim, *, forgiven: bool, budget: float | None = None) -> bool:
        """The message returns to the head of the line; forgiven, this delivery does not count."""
        slot = self._calls.borrow()
        try:
            arguments = (int(forgiven), slot.next_call(), claim.id, claim.lease)
            return bool(await self._calls.call(slot.give_back, arguments, budget=budget) == b"1")
        finally:
            self._calls.give_back(slot)

    async def renew(self, claim: Claim, budget: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """The lease begins anew, if it is still ours; the attempt ends when the lease would, or the delivery has."""
        held = (claim.id, claim.lease)
        return bool(await self._calls.call(self._renew, held, budget=budget, stopped=is_over) == b"1")
