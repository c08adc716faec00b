"""Group commit: calls of one kind that meet in one part of a queue are sent together, under one number.

A call that finds no other under way is sent at once. Any other joins the line; when the answer arrives, the first
caller in line sends everything that waits there. Results, events, journal and stored state are those of the same calls
made one after another in order of arrival. What the calls are, publishes or acknowledgements, only their `GroupKind`
knows.

A Ctrl-C can end a caller between any two steps. So a caller is over as soon as its own `finally` begins, whatever it
has left undone, and any other caller can continue from there: all of them look again now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis_message_queue.protocol.calls import SHORTEST_ATTEMPT_SECONDS, Calls, ReplySlot
from redis_message_queue.protocol.port import Argument, Call, Command, Notification
from redis_message_queue.stored.bounds import MAX_BYTES
from redis_message_queue.values.errors import NotPermittedError, RedisMessageQueueError, RetryBudgetExhaustedError

_LOOK_AGAIN_SECONDS = 0.5


class GroupKind(Protocol):
    """What the calls of a group have in common: how they are sent together, and what their answer says."""

    operation: str
    advice: str  # what to do about an unknown outcome
    most: int  # how many calls one script takes

    def size(self, item: Any) -> int:
        """How many bytes a call adds to its group."""

    def request(self, slot: ReplySlot, members: Sequence[GroupedCall]) -> Call:
        """Return what sends these calls, under the next number of the slot."""

    def read(self, reply: Any, members: Sequence[GroupedCall]) -> list[GroupedCall]:
        """Give each member its outcome; return those that must be sent again."""

    def result(self, call: GroupedCall) -> Any:
        """Return what the caller gets, or raise its error."""


class SingleCall:
    """A call that is under way, from the time that no other was until its end."""

    is_over = False
    thread: object = None
    message_id = b""  # where it is not the caller's


class GroupedCall(SingleCall):
    """A call that waits for another one, with the message that it is about.

    With a list for ``cancellations`` these are noted there, and do not end the wait.
    """

    def __init__(
        self,
        item: Any,
        own_id: bytes,
        started: float,
        limit: float | None,
        cancellations: list[BaseException] | None,
        notification: Notification,
    ) -> None:
        self.item = item
        self.own_id = own_id
        self.message_id = own_id  # the one that is stored: in a group, the group decides
        self.started = started
        self.limit = limit  # when its caller must have an answer or an error
        self.cancellations = cancellations
        self.notification = notification
        self.group: Group | None = None  # the last one that it was in
        self.is_alone = False  # the server refused its group: it is sent in a call of its own
        self.outcome: Any = None

    @property
    def waits(self) -> bool:
        """Whether its caller is there and has no answer."""
        return not (self.is_over or self.outcome is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Calls that are sent by one numbered call, as often as it takes: by one of their callers after another."""

    calls: Sequence[GroupedCall]
    slot: ReplySlot
    command: Command
    extra_keys: tuple[str, ...]
    arguments: tuple[Argument, ...]
    unanswered: list[BaseException] = field(default_factory=list)  # requests that Redis may still execute


class _Callers:
    """The callers of one process, and of one event loop, in order of arrival."""

    def __init__(self, scope: object) -> None:
        self.scope = scope
        self.sender = SingleCall()  # whoever sends, or sent last
        self.sender.is_over = True
        self.waiting: deque[GroupedCall] = deque()  # may still have some that were sent or are over
        self.group: Group | None = None  # the one that has no answer yet
        self.threads: dict[object, GroupedCall] = {}


class GroupCommit:
    """Decides which calls of one kind are sent together, and which of their callers sends them."""

    def __init__(self, calls: Calls, kind: GroupKind) -> None:
        self._calls = calls
        self._kind = kind
        self._lock = calls.port.lock()
        self._scope = calls.port.group_scope
        self._thread = calls.port.thread
        self._callers = _Callers(None)

    def begin(self, call: SingleCall) -> bool:
        """Whether this call is sent by itself, now: if no other is under way, or if it cannot wait for that one."""
        callers = self._callers
        if callers.scope != (scope := self._scope()):
            callers = self._callers = _Callers(scope)  # a forked child, or another event loop, begins anew
        if callers.sender.is_over and not callers.waiting:
            # Two threads may come here at the same time: then both are sent, and the second is known.
            call.thread = self._thread()
            callers.sender = call
            return True
        # Before the first contact each caller has five seconds of its own. A signal handler must not wait for the call
        # that it interrupts.
        return not self._calls.has_connected or self._is_inside_another(callers)

    def _is_inside_another(self, callers: _Callers) -> bool:
        thread = self._thread()
        if thread is None:
            return False
        around = callers.threads.get(thread)
        sender = callers.sender
        return (around is not None and not around.is_over) or (sender.thread == thread and not sender.is_over)

    def end(self, call: SingleCall) -> None:
        """Let the next caller send, after ``is_over`` was set."""
        callers = self._callers
        if callers.sender is call and (callers.waiting or callers.group is not None):
            with self._lock:
                self._choose_sender(callers)

    def new_call(
        self,
        item: Any,
        message_id: bytes,
        started: float,
        limit: float | None = None,
        cancellations: list[BaseException] | None = None,
    ) -> GroupedCall:
        """A call that is about to join the line; its budget counts from ``started``."""
        return GroupedCall(item, message_id, started, limit, cancellations, self._calls.port.notification())

    async def join(self, call: GroupedCall) -> Any:
        """Wait for a turn in the line and for the answer; return what became of this message, or raise its error."""
        callers = self._callers
        call.thread = self._thread()
        try:
            with self._lock:
                if call.thread is not None:
                    callers.threads[call.thread] = call
                callers.waiting.append(call)
            while call.outcome is None:
                if self._is_sender(callers, call):
                    await self._send(callers, call)
                else:
                    await self._wait(callers, call)
            if isinstance(call.outcome, RedisMessageQueueError):
                raise call.outcome
            return self._kind.result(call)
        finally:
            call.is_over = True
            self._leave(callers, call)

    def _leave(self, callers: _Callers, call: GroupedCall) -> None:
        if callers.sender is call or call.outcome is None:
            with self._lock:
                if call.outcome is None:
                    with suppress(ValueError):  # it was sent
                        callers.waiting.remove(call)
                self._choose_sender(callers)
        if callers.threads.get(call.thread) is call:
            del callers.threads[call.thread]

    def _is_sender(self, callers: _Callers, call: GroupedCall) -> bool:
        if callers.sender.is_over:
            with self._lock:
                self._choose_sender(callers)
        return callers.sender is call

    def _choose_sender(self, callers: _Callers) -> None:
        """Let the first who waits be the sender, if the last one is over: first those of a group without an answer."""
        if not callers.sender.is_over:
            return
        chosen = None
        if callers.group is not None:
            chosen = next((one for one in callers.group.calls if one.waits), None)
            if chosen is None:
                self._close(callers, callers.group)  # everybody has left: as after any publish with an unknown outcome
        if chosen is None:
            while callers.waiting and not callers.waiting[0].waits:
                callers.waiting.popleft()
            chosen = callers.waiting[0] if callers.waiting else None
        if chosen is not None:
            callers.sender = chosen
            chosen.notification.send()

    def _close(self, callers: _Callers, group: Group) -> None:
        callers.group = None
        self._calls.release_slot(group.slot)
        for one in group.calls:
            one.group = None

    async def _wait(self, callers: _Callers, call: GroupedCall) -> None:
        """Wait for a notification; raise when the time of this call is over."""
        calls = self._calls
        is_sent = callers.group is not None and call.group is callers.group
        # What was sent has the time of one attempt more, as a call that is sent by itself has.
        ends_at = call.started + calls.plan.budget_seconds + (calls.listening_seconds if is_sent else 0.0)
        if call.limit is not None:
            ends_at = min(ends_at, call.limit + (SHORTEST_ATTEMPT_SECONDS if is_sent else 0.0))
        left = ends_at - calls.port.now()
        if left <= 0:
            with self._lock:
                if call.outcome is None and callers.sender is not call:
                    raise self._exhausted(call, is_sent=is_sent)
        try:
            await call.notification.wait(min(left, _LOOK_AGAIN_SECONDS))
        except BaseException as error:
            if call.cancellations is None or not calls.port.is_cancellation(error):
                raise
            call.cancellations.append(error)

    def _exhausted(self, call: GroupedCall, *, is_sent: bool) -> RetryBudgetExhaustedError:
        where, seconds = f"redis at {self._calls.port.address}", self._calls.port.now() - call.started
        operation = self._kind.operation
        if is_sent:
            return RetryBudgetExhaustedError(
                f"{operation} got no answer from {where} in {seconds:.1f} s; {self._kind.advice}",
                operation=operation,
                message_id=call.message_id.hex(),
            )
        return RetryBudgetExhaustedError(
            f"{operation} waited {seconds:.1f} s for another {operation} of this queue object, which has no answer "
            f"from {where}; nothing was sent, call again later",
            operation=operation,
            message_id=call.message_id.hex(),
            was_sent=False,
        )

    async def _send(self, callers: _Callers, call: GroupedCall) -> None:
        """Send the group that has no answer yet, under its number, or a new one; give its callers their answers."""
        calls = self._calls
        with self._lock:
            before = callers.group
            group = before or self._form(callers)
        try:
            reply = await calls.call(
                group.command,
                group.arguments,
                extra_keys=group.extra_keys,
                started=call.started,
                limit=call.limit,
                cancellations=call.cancellations,
                unanswered=group.unanswered,
            )
        except RedisMessageQueueError as error:
            # Without an answer, the next caller repeats the same number for those who still wait.
            if isinstance(error, RetryBudgetExhaustedError) and before is not None and not error.was_sent:
                raise self._exhausted(call, is_sent=True) from error  # by another caller, perhaps
            if isinstance(error, RetryBudgetExhaustedError) or len(group.calls) == 1:
                raise
            # It may be done all the same, by a request that arrives late, or half-way: sent again under another
            # number, some would be stored twice. A client may have repeated the request itself, which nobody here
            # knows; that does harm only if what refused the group passes by itself, as a full memory does.
            may_be_done = group.unanswered or call.cancellations or before is not None or "maxmemory" in str(error)
            with self._lock:
                if may_be_done or isinstance(error, NotPermittedError):
                    for one in group.calls:
                        one.outcome = copy(error)
                        one.outcome.message_id = one.message_id.hex()
                else:  # refused before anything was written: each is sent by itself, in the same order
                    for one in group.calls:
                        one.is_alone = True
                    callers.waiting.extendleft(reversed(group.calls))
                self._end(callers, group, call)
            return
        with self._lock:
            callers.waiting.extendleft(reversed(self._kind.read(reply, group.calls)))
            self._end(callers, group, call)

    def _end(self, callers: _Callers, group: Group, sender: GroupedCall) -> None:
        """Let those go who have an answer, and the next caller send if the sender is one of them."""
        self._close(callers, group)
        if sender.outcome is not None:
            sender.is_over = True
            self._choose_sender(callers)
        for one in group.calls:
            if one is not sender and one.outcome is not None:
                one.notification.send()

    def _form(self, callers: _Callers) -> Group:
        """Make a group of those who wait: as many as one script takes, or one whose group was refused."""
        kind, waiting, members, size = self._kind, callers.waiting, list[GroupedCall](), 0
        for one in dict.fromkeys(waiting):  # a caller that was interrupted may have put some back twice
            if not one.waits:
                continue
            more = kind.size(one.item)
            if members and (one.is_alone or len(members) == kind.most or size + more > MAX_BYTES):
                break
            members.append(one)
            size += more
            if one.is_alone:
                break
        slot = self._calls.acquire_slot()
        command, extra_keys, arguments = kind.request(slot, members)
        group = Group(members, slot, command, extra_keys, arguments)
        for one in members:
            one.group = group
        callers.group = group
        while waiting and (waiting[0].group is group or not waiting[0].waits):
            waiting.popleft()
        return group
