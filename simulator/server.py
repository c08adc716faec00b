"""Simulated Redis servers: they execute scripts and commands, block for wake-ups, and fail in all the usual ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis_message_queue.protocol.port import Argument
from redis_message_queue.stored.scripts import Script, all_scripts
from simulator.keyspace import COMMANDS, OUT_OF_MEMORY, Keyspace, RedisError
from simulator.lua import Interpreter, as_bytes

NO_SCRIPT = "NOSCRIPT No matching script."
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
_SCRIPTS: dict[str, Script] = {}


def script_of(source: str) -> Script:
    """The script with this text."""
    if not _SCRIPTS:
        _SCRIPTS.update((one.source, one) for one in all_scripts())
    return _SCRIPTS[source]


class Step(NamedTuple):
    """One script or command that the server executed."""

    name: str  # of the script, or of the command
    caller: str
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]
    reply: Any
    error: str | None
    changed: frozenset[bytes]  # keys
    now_us: int
    script: Script | None = None
    was_full: bool = False


@dataclass(eq=False)
class Waiter:
    """A client that blocks in BLPOP."""

    key: bytes
    answer: Callable[[list[bytes] | None], None]


class Server:
    """One server, or a primary with a replica that may fall behind. It may be a node of a cluster.

    The nodes of a cluster share a keyspace, in which each has the keys of its own queues and partitions.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        clock_us: Callable[[], int],
        observe: Callable[[Step], None],
        keyspace: Keyspace | None = None,
    ) -> None:
        self._interpreter = interpreter
        self.clock_us = clock_us
        self._observe = observe
        self.keyspace = keyspace or Keyspace()
        self.is_up = True
        self.stopped_until = 0.0  # until then the server neither answers nor refuses; what arrives meanwhile waits
        self.is_busy = False
        self.is_full = False
        self.is_replica_behind = False
        self.is_disk_behind = False
        self.incarnation = 0  # a connection does not survive a restart or a failover
        self._waiters: dict[bytes, deque[Waiter]] = {}
        self.patched: dict[str, Script] = {}  # scripts with a planted bug, by name
        self.cached: set[str] | None = None  # the names of the scripts that it has; None: all of them

    # -- executing

    def run_script(self, caller: str, one: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Execute a script. Raises a `RedisError` where the server would answer with one."""
        if self.is_busy:
            raise RedisError(BUSY)
        self._begin()
        if self.cached is not None:
            self.cached.add(one.name)
        keyspace, error, reply = self.keyspace, None, None
        executed = self.patched.get(one.name, one)
        try:
            reply = self._interpreter.run(executed, keyspace, keys, arguments, is_full=self.is_full)
            return reply
        except RedisError as trouble:
            error = str(trouble)
            raise
        finally:
            self._finish(Step(one.name, caller, keys, arguments, reply, error, *self._end(), one, self.is_full))

    def run_cached(self, caller: str, one: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]) -> Any:
        """Execute a script by its digest."""
        if self.cached is not None and one.name not in self.cached:
            raise RedisError(NO_SCRIPT)
        return self.run_script(caller, one, keys, arguments)

    def run_command(self, caller: str, words: Sequence[Argument]) -> Any:
        """Execute a command that is not a script."""
        name = str(words[0])
        if name == "EVAL":
            _, source, count, *rest = words
            keys = tuple(str(key) for key in rest[: int(count)])
            return self.run_script(caller, script_of(str(source)), keys, tuple(rest[int(count) :]))
        if self.is_busy:
            raise RedisError(BUSY)
        self._begin()
        error, reply = None, None
        try:
            found = COMMANDS.get(name.encode())
            if found is not None and found.needs_memory and self.is_full:
                raise RedisError(OUT_OF_MEMORY)
            reply = self.keyspace.execute(name.encode(), [as_bytes(word) for word in words[1:]])
            return reply
        except RedisError as trouble:
            error = str(trouble)
            raise
        finally:
            self._finish(Step(name, caller, (), tuple(words[1:]), reply, error, *self._end(), None, self.is_full))

    def _begin(self) -> None:
        self.keyspace.advance(self.clock_us())
        self.keyspace.changed.clear()  # what expired is nobody's doing

    def _end(self) -> tuple[frozenset[bytes], int]:
        return frozenset(self.keyspace.changed), self.keyspace.now_us

    def _finish(self, step: Step) -> None:
        self._observe(step)
        for key in sorted(step.changed) if self._waiters else ():
            self._serve(key)

    # -- blocking

    def block(self, key: str, answer: Callable[[list[bytes] | None], None]) -> Waiter | None:
        """Pop an element, or wait until there is one; None if the answer was given at once."""
        if self.is_busy:
            raise RedisError(BUSY)
        waiter = Waiter(key.encode(), answer)
        self._waiters.setdefault(waiter.key, deque()).append(waiter)
        self._serve(waiter.key)
        return waiter if waiter in self._waiters[waiter.key] else None

    def stop_blocking(self, waiter: Waiter) -> bool:
        """Whether it was still waiting."""
        waiting = self._waiters.get(waiter.key, ())
        if waiter not in waiting:
            return False
        self._waiters[waiter.key].remove(waiter)
        return True

    def is_anybody_blocked(self, key: bytes) -> bool:
        return bool(self._waiters.get(key))

    def _serve(self, key: bytes) -> None:
        waiting = self._waiters.get(key)
        while waiting and self.keyspace.values.get(key):
            self.keyspace.changed.clear()
            element = self.keyspace.execute(b"LPOP", [key])
            self._observe(Step("BLPOP", "", (key.decode(),), (), element, None, frozenset([key]), self.keyspace.now_us))
            waiting.popleft().answer([key, element])

    # -- failing

    def drop_connections(self) -> None:
        """What was under way on a connection ends there."""
        self.incarnation += 1
        self._waiters.clear()

    def restore(self, earlier: Keyspace, is_own: Callable[[bytes], bool] = lambda key: True) -> None:
        """Continue with the earlier state of the disk or of a replica, as far as the keys are this server's own."""
        for now, before in (self.keyspace.values, earlier.values), (self.keyspace.expires_us, earlier.expires_us):
            merged = {key: now[key] for key in now if not is_own(key)} | {
                key: before[key] for key in before if is_own(key)
            }
            now.clear()
            now.update(merged)  # type: ignore[arg-type]  # each of the two has one type
