"""A server that is put into one situation after the other, each time as if nothing had happened there."""

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import redis

from tests.lua.scripts_runner import Caller, evaluate

T = TypeVar("T")

# Leases and delays are at least a thousand seconds long here, by the server's clock.
FRESH_SECONDS = 60

_COPY = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1] = key
  found[#found + 1] = math.max(redis.call('PTTL', key), 0)
  found[#found + 1] = redis.call('DUMP', key)
end
return found
"""
_PUT_BACK = """
redis.call('FLUSHALL')
for at = 1, #ARGV, 3 do
  redis.call('RESTORE', ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
"""


class Stage:
    """Builds a situation once, which takes a dozen scripts, and puts it back in one request from then on."""

    def __init__(self, client: redis.Redis, **settings: Any) -> None:
        self.client = client
        self._settings = settings
        self._built: dict[Any, tuple[float, list[Any], tuple[Caller, Any]]] = {}

    def clear(self, **settings: Any) -> Caller:
        """A caller of a server that is empty."""
        self.client.flushall()
        return Caller(self.client, **self._settings | settings)

    def prepare(self, situation: Callable[[Caller], T], *, journaled: bool = False) -> tuple[Caller, T]:
        """A caller in this situation and what the situation returned, in a server that holds nothing else."""
        known = self._built.get((situation, journaled))
        if known is None or known[0] < time.monotonic() - FRESH_SECONDS:
            known = self._built[situation, journaled] = self._build(situation, journaled)
        _, everything, made = known
        evaluate(self.client, _PUT_BACK, *everything)
        # With its settings, its numbers and what it holds; the connection is the only thing that all share.
        return deepcopy(made, {id(self.client): self.client})

    def _build(self, situation: Callable[[Caller], T], journaled: bool) -> tuple[float, list[Any], tuple[Caller, T]]:
        began = time.monotonic()
        caller = self.clear()
        if journaled:
            caller.open_journal()
        made = (caller, situation(caller))
        return began, evaluate(self.client, _COPY), made
