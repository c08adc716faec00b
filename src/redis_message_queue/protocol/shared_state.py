"""What all partitions of a queue have in common: pauses, the rules of the journal and weights.

The first partition decides. Another one gets a copy before anybody can use it: when its first client opens it, as after
a growth. A pause reaches the first partition first. So a copy has the pause already, or the pause arrives after it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_message_queue.protocol.port import Argument, Command
from redis_message_queue.stored.keys import QueueKeys
from redis_message_queue.stored.scripts import script
from redis_message_queue.values.errors import PartitionCountError

if TYPE_CHECKING:
    from redis_message_queue.protocol.calls import Calls

STATE_VERSION = 1  # of everything that is stored; lua/lib/state.lua compares it
_A_SCRIPT = 3_000  # arguments: three for each change
_PLACES = ("meta", "weights")


@dataclass(frozen=True, slots=True)
class SharedState:
    """The shared state of one partition; fields by their place."""

    partitions: int | None  # as this partition knows it
    is_open: bool  # whether somebody has used it
    fields: dict[tuple[str, bytes], bytes]


async def read_shared_state(
    calls: Calls, keys: QueueKeys, limit: float | None = None, *, fields: bool = True
) -> SharedState:
    """Return what a partition has of it, or without the fields only whether it is in use."""
    command = Command(script("read_shared_state"), (keys.meta, keys.weights, keys.counted))
    found: dict[tuple[str, bytes], bytes] = {}
    partitions = version = b""
    for place in _PLACES:
        cursor = b"0"
        while True:
            reply: Any = await _send(calls, command, (place, cursor), limit)
            partitions, version, cursor, *pairs = reply
            found.update(((place, field), value) for field, value in zip(pairs[::2], pairs[1::2], strict=True))
            if cursor == b"0" or not fields:
                break
        if not fields:
            break
    return SharedState(int(partitions) if partitions.isdigit() else None, bool(version), found)


async def decides_alone(calls: Calls, limit: float | None) -> bool:
    """Return whether a partition is in use with the number of this client, or has a larger one."""
    own = await read_shared_state(calls, calls.keys, limit, fields=False)
    number = own.partitions or 0
    return number > calls.partitions or (number == calls.partitions and own.is_open)


async def share_state(calls: Calls, first: QueueKeys, limit: float | None = None) -> None:
    """Copy the shared state of the first partition into one that nobody has used yet."""
    wanted = (await read_shared_state(calls, first, limit)).fields
    own = await read_shared_state(calls, calls.keys, limit)
    if own.is_open or own.fields == wanted:
        return
    gone = dict.fromkeys(sorted(own.fields.keys() - wanted.keys()), b"")  # of a growth that was interrupted
    changes: list[Argument] = []
    for (place, field), value in (gone | wanted).items():
        changes += (place, field, value)
    command = Command(script("share_state"), (calls.keys.meta, calls.keys.weights))
    for at in range(0, len(changes), _A_SCRIPT):
        await _send(calls, command, (calls.port.new_id().hex(), *changes[at : at + _A_SCRIPT]), limit)


async def follow_first(calls: Calls, first: QueueKeys, limit: float | None) -> None:
    """Bring a partition to the number and the shared state of the first one, which has the number of this client.

    A growth that is under way, or was interrupted, has not come to it yet.
    """
    while True:
        own = await read_shared_state(calls, calls.keys, limit, fields=False)
        if own.partitions is None or own.partitions >= calls.partitions:
            break
        with suppress(PartitionCountError):  # another client was faster
            await grow_partition(calls, own.partitions, limit)
    if not own.is_open:
        await share_state(calls, first, limit)


async def grow_partition(calls: Calls, found: int, limit: float | None = None) -> None:
    """Give one partition the number of these calls, if it has the number that was found."""
    own = QueueKeys.unchecked(calls.keys.prefix, separator=calls.keys.separator)
    before = own.meta if found == 1 else own.partitioned_meta(found)
    command = Command(script("grow_partition"), (calls.keys.counted, before, calls.keys.meta))
    await _send(calls, command, (STATE_VERSION, found, calls.partitions), limit)


async def _send(calls: Calls, command: Command, arguments: tuple[Argument, ...], limit: float | None) -> Any:
    return await calls.retry(lambda: calls.port.call(command, (), arguments), command.script.verb, limit=limit)
