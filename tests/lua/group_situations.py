"""Situations of consumer groups: each function prepares one, and gives back the call that is to be made in it."""

from functools import partial
from typing import Any

from tests.lua.scripts_runner import KEYS, Caller, New
from tests.lua.situations import Call, Situation

GROUP = "reports"


class Holder:
    """The holder of a consumer group, as the streaming source speaks to the scripts."""

    def __init__(self, caller: Caller, holder: str = "a") -> None:
        self.caller = caller
        self.holder = holder
        self.epoch = 0
        self.number = 1
        self.part = 0

    def take_over(self, after: int = 0, lease_us: int = 60_000_000) -> list[int]:
        self.epoch = after + 1
        return self._send("take_over", holder=self.holder, lease_us=lease_us, after=after)

    def gather(self, count: int = 10, part: int | None = None) -> list[int]:
        self.part = self.part + 1 if part is None else part
        return self._send("gather", part=self.part, count=count)

    def seal(self) -> int:
        return self._send("seal")

    def acknowledge(self, upto: int, jump: int = 0) -> list[int]:
        return self._send("acknowledge", upto=upto, jump=jump)

    def release(self, keep: int = 0) -> list[int]:
        return self._send("release", keep=keep)

    def members(self, number: int = 1) -> list[bytes]:
        return self.caller.client.lrange(KEYS.members(GROUP, number), 0, -1)

    def _send(self, verb: str, **given: Any) -> Any:
        keys = {"members": KEYS.members(GROUP, self.number)}
        given = {"whose": GROUP, "epoch": self.epoch, "number": self.number} | given
        return self.caller._send(verb, keys, **given)


def holding(caller: Caller) -> Holder:
    """A holder in its first epoch."""
    holder = Holder(caller)
    holder.take_over()
    return holder


def sealed(caller: Caller, count: int = 10) -> Holder:
    """A holder with a sealed claim of what there is."""
    holder = holding(caller)
    holder.gather(count)
    assert holder.seal() == 1
    return holder


def take_over(caller: Caller) -> Call:
    return Holder(caller).take_over


def take_over_again(caller: Caller) -> Call:
    return holding(caller).take_over


def take_over_in_vain(caller: Caller) -> Call:
    holding(caller)
    return partial(Holder(caller, "b").take_over, 1)


def gather(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    caller.hush()
    return partial(holding(caller).gather, 2)


def gather_in_vain(caller: Caller) -> Call:
    return holding(caller).gather


def gather_what_came_back(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return holding(caller).gather


def gather_in_turns(caller: Caller) -> Call:
    caller.line_up("acme", b"first", b"third")
    caller.line_up("zeta", b"second")
    caller.publish(b"fourth")
    return holding(caller).gather


def gather_what_is_due(caller: Caller) -> Call:
    caller.enqueue(New(b"first", due="+1000000000"), New(b"second", b"acme", due="+1000000000"))
    caller.pass_delays()
    return holding(caller).gather


def gather_past_foreign_values(caller: Caller) -> Call:
    caller.client.rpush(KEYS.pending, b"foreign")
    caller.client.lpush(KEYS.pending, b"foreign too")
    return holding(caller).gather


def gather_everything_at_once(caller: Caller) -> Call:
    """Over the limit, under it, foreign, never delivered, due by now; with a tenant and without."""
    caller.settings.most = 2
    caller.hold(b"over the limit", tenant="acme")
    caller.expire()
    caller.claim()
    caller.hold(b"under the limit")
    caller.expire()
    caller.client.rpush(KEYS.pending, b"foreign")
    caller.publish(b"never delivered")
    caller.enqueue(New(b"due by now", b"acme", due="+1000000000"), New(b"due by now too", b"zeta", due="+1000000000"))
    caller.pass_delays()
    caller.hush()
    return holding(caller).gather


def seal(caller: Caller) -> Call:
    caller.publish(b"first")
    holder = holding(caller)
    holder.gather()
    return holder.seal


def seal_nothing(caller: Caller) -> Call:
    return holding(caller).seal


def acknowledge(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second"])
    return partial(sealed(caller).acknowledge, 1)


def acknowledge_what_was_delivered_twice(caller: Caller) -> Call:
    caller.hold(b"first", b"second")
    caller.expire()
    return partial(sealed(caller).acknowledge, 1)


def acknowledge_what_is_lost(caller: Caller) -> Call:
    return partial(holding(caller).acknowledge, 7, jump=1)


def release(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    holder = sealed(caller, 2)
    caller.hush()
    return holder.release


def release_in_part(caller: Caller) -> Call:
    caller.publish_all([b"first", b"second", b"third"])
    return partial(sealed(caller).release, 1)


def release_to_tenants(caller: Caller) -> Call:
    gather_in_turns(caller)
    caller.hold(b"delivered before", tenant="acme")
    caller.expire()
    holder = sealed(caller)
    caller.hush()
    return holder.release


TAKE_OVERS: tuple[Situation, ...] = (take_over, take_over_again, take_over_in_vain)
GATHERINGS: tuple[Situation, ...] = (
    gather,
    gather_what_came_back,
    gather_in_turns,
    gather_what_is_due,
    gather_past_foreign_values,
    gather_everything_at_once,
)
ENDS: tuple[Situation, ...] = (
    seal,
    seal_nothing,
    acknowledge,
    acknowledge_what_was_delivered_twice,
    acknowledge_what_is_lost,
    release,
    release_in_part,
    release_to_tenants,
)
EVERY = (*TAKE_OVERS, *GATHERINGS, gather_in_vain, *ENDS)
