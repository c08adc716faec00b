"""Situations of consumer groups: each function prepares one, and returns the call to make in it."""

from functools import partial
from typing import Any

from redis_message_queue.stored.envelope import TIME_AT
from tests.lua.scripts_runner import KEYS, Caller, New
from tests.lua.situations import Call, Situation, leave_messages_of_every_kind

GROUP = "reports"


class Holder:
    """The holder of a consumer group, as the streaming source speaks to the scripts."""

    def __init__(self, caller: Caller, holder: str = "a") -> None:
        self.caller = caller
        self.holder = holder
        self.epoch = 0
        self.number = 1
        self.part = 0

    def acquire_group(self, after: int = 0, lease_us: int = 60_000_000) -> list[int]:
        self.epoch = after + 1
        return self._send("acquire_group", holder=self.holder, lease_us=lease_us, after=after, renews=0)

    def renew(self, lease_us: int = 60_000_000) -> list[int]:
        return self._send("acquire_group", holder=self.holder, lease_us=lease_us, after=self.epoch - 1, renews=1)

    def fill_batch(self, count: int = 10, part: int | None = None) -> list[Any]:
        self.part = self.part + 1 if part is None else part
        return self._send("fill_batch", part=self.part, count=count)

    def reject_members(self, *places: int | bytes) -> list[Any]:
        keys = {"members": KEYS.members(GROUP, self.number)}
        words = self.caller._words("reject_members", keys, (), **self._usual, reason="no text")
        return self.caller._send_words("reject_members", [*words, *places])

    def places(self, *indexes: int) -> list[int | bytes]:
        """Index and id of members, as they are named when they are rejected."""
        found = self.members()
        stored = {
            index: found[index].partition(b":")[2] if found[index][:1] < b"\x80" else found[index] for index in indexes
        }
        return [part for index in indexes for part in (index, stored[index][1:TIME_AT])]

    def seal_batch(self, part: int | None = None, slices: int = 1) -> int:
        return self._send("seal_batch", part=self.part if part is None else part, slices=slices)

    def ack_batch(self, upto: int, jump: int = 0) -> list[int]:
        return self._send("ack_batch", upto=upto, jump=jump)

    def release_batch(self, keep: int = 0) -> list[int]:
        return self._send("release_batch", keep=keep)

    def members(self, number: int = 1) -> list[bytes]:
        return self.caller.client.lrange(KEYS.members(GROUP, number), 0, -1)

    def _send(self, verb: str, **given: Any) -> Any:
        keys = {"members": KEYS.members(GROUP, self.number)}
        return self.caller._send(verb, keys, **self._usual | given)

    @property
    def _usual(self) -> dict[str, Any]:
        return {"whose": GROUP, "query": self.holder, "epoch": self.epoch, "number": self.number}


def holding(caller: Caller) -> Holder:
    """A holder in its first epoch."""
    holder = Holder(caller)
    holder.acquire_group()
    return holder


def sealed(caller: Caller, count: int = 10) -> Holder:
    """A holder with a sealed claim of what there is."""
    holder = holding(caller)
    holder.fill_batch(count)
    assert holder.seal_batch() == 1
    return holder


def acquire_group(caller: Caller) -> Call:
    return Holder(caller).acquire_group


def acquire_group_again(caller: Caller) -> Call:
    return holding(caller).acquire_group


def acquire_group_in_vain(caller: Caller) -> Call:
    holding(caller)
    return partial(Holder(caller, "b").acquire_group, 1)


def fill_batch(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    caller.take_token()
    return partial(holding(caller).fill_batch, 2)


def fill_batch_in_vain(caller: Caller) -> Call:
    return holding(caller).fill_batch


def fill_batch_what_came_back(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return holding(caller).fill_batch


def fill_batch_in_turns(caller: Caller) -> Call:
    caller.enqueue_for("acme", b"first", b"third")
    caller.enqueue_for("zeta", b"second")
    caller.publish(b"fourth")
    return holding(caller).fill_batch


def fill_batch_what_is_due(caller: Caller) -> Call:
    caller.enqueue(New(b"first", due="+1000000000"), New(b"second", b"acme", due="+1000000000"))
    caller.pass_delays()
    return holding(caller).fill_batch


def fill_batch_past_foreign_values(caller: Caller) -> Call:
    caller.client.rpush(KEYS.pending, b"foreign")
    caller.client.lpush(KEYS.pending, b"foreign too")
    return holding(caller).fill_batch


def fill_batch_everything_at_once(caller: Caller) -> Call:
    leave_messages_of_every_kind(caller)
    return holding(caller).fill_batch


def reject_members(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    holder = holding(caller)
    holder.fill_batch()
    return partial(holder.reject_members, *holder.places(0, 2))


def reject_members_what_was_delivered_twice(caller: Caller) -> Call:
    caller.hold(b"first", b"second", tenant="acme")
    caller.expire()
    holder = holding(caller)
    holder.fill_batch()
    return partial(holder.reject_members, *holder.places(0, 1))


def seal_batch(caller: Caller) -> Call:
    caller.publish(b"first")
    holder = holding(caller)
    holder.fill_batch()
    return holder.seal_batch


def seal_batch_nothing(caller: Caller) -> Call:
    return holding(caller).seal_batch


def ack_batch(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(sealed(caller).ack_batch, 1)


def ack_batch_what_was_delivered_twice(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return partial(sealed(caller).ack_batch, 1)


def ack_batch_what_is_lost(caller: Caller) -> Call:
    return partial(holding(caller).ack_batch, 7, jump=1)


def release_batch(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    holder = sealed(caller, 2)
    caller.take_token()
    return holder.release_batch


def release_batch_in_part(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    return partial(sealed(caller).release_batch, 1)


def release_batch_to_tenants(caller: Caller) -> Call:
    fill_batch_in_turns(caller)
    caller.hold(b"delivered before", tenant="acme")
    caller.expire()
    holder = sealed(caller)
    caller.take_token()
    return holder.release_batch


TAKE_OVERS: tuple[Situation, ...] = (acquire_group, acquire_group_again, acquire_group_in_vain)
GATHERINGS: tuple[Situation, ...] = (
    fill_batch,
    fill_batch_what_came_back,
    fill_batch_in_turns,
    fill_batch_what_is_due,
    fill_batch_past_foreign_values,
    fill_batch_everything_at_once,
)
ENDS: tuple[Situation, ...] = (
    reject_members,
    reject_members_what_was_delivered_twice,
    seal_batch,
    seal_batch_nothing,
    ack_batch,
    ack_batch_what_was_delivered_twice,
    ack_batch_what_is_lost,
    release_batch,
    release_batch_in_part,
    release_batch_to_tenants,
)
EVERY = (*TAKE_OVERS, *GATHERINGS, fill_batch_in_vain, *ENDS)
