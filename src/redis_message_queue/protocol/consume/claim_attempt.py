"""The states of a claim attempt, from before its first request until a handler has its messages.

Everything that affects these states is in this file, with one exception: the step to `HANDED_OVER` is a plain store
in the code that returns messages to a handler. A Ctrl-C can arrive after any call, but not between that store and
the return, so there is no moment at which neither the handler nor a later recovery would get the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from redis_message_queue.protocol.calls import ReplySlot
    from redis_message_queue.protocol.parts import Part


class State(StrEnum):
    """What can be said of the messages of an attempt."""

    IDLE = "idle"  # it has taken none
    SENT = "sent"  # Redis may have given it some
    RECEIVED = "received"  # it has them, and no handler has
    OFFERED = "offered"  # the handler is about to get them
    HANDED_OVER = "handed over"  # the handler has them
    ABANDONED = "abandoned"  # its consumer has left it, and an unconfirmed attempt has its place
    UNCONFIRMED = "unconfirmed"  # it is unknown whether it took some
    RECOVERING = "recovering"  # a call asks Redis what it took
    RECOVERED = "recovered"  # the consumer that asked has them, and no handler has
    CLOSED = "closed"  # its slot is free


IDLE, SENT, RECEIVED, OFFERED = State.IDLE, State.SENT, State.RECEIVED, State.OFFERED
HANDED_OVER, ABANDONED, UNCONFIRMED = State.HANDED_OVER, State.ABANDONED, State.UNCONFIRMED
RECOVERING, RECOVERED, CLOSED = State.RECOVERING, State.RECOVERED, State.CLOSED

Transition = Literal[
    "send", "receive", "receive_nothing", "settle", "offer", "hand_over", "abandon", "recover", "leave", "close"
]

TRANSITIONS: dict[Transition, dict[State, State]] = {
    "send": {IDLE: SENT},
    "receive": {SENT: RECEIVED, RECOVERING: RECOVERED},
    "receive_nothing": {SENT: IDLE, RECOVERING: IDLE},
    "settle": {RECEIVED: IDLE, RECOVERED: IDLE},  # without a handler, for example to the dead letters
    "offer": {RECEIVED: OFFERED, RECOVERED: OFFERED},
    "hand_over": {OFFERED: HANDED_OVER},
    "abandon": {SENT: ABANDONED, RECEIVED: ABANDONED, OFFERED: ABANDONED},
    "recover": {UNCONFIRMED: RECOVERING},
    # From IDLE as well: the consumer was interrupted before it could close the attempt. Asking again is harmless.
    "leave": {RECOVERING: UNCONFIRMED, RECOVERED: UNCONFIRMED, IDLE: UNCONFIRMED},
    "close": {IDLE: CLOSED},
}


class IllegalTransitionError(RuntimeError):
    """A claim attempt was asked for a step that its state does not allow: a mistake in this library."""


class ClaimAttempt:
    """One claim on one reply slot. The slot is the attempt's until a handler has the messages or it is closed."""

    __slots__ = ("call", "part", "recovered_by", "slot", "state")

    def __init__(self, part: Part, slot: ReplySlot, call: bytes = b"", state: State = IDLE) -> None:
        self.part = part  # where it claims
        self.slot = slot
        self.call = call  # the number of its last request
        self.state = state
        self.recovered_by: object | None = None  # who asks what it took, or asked last

    def apply(self, transition: Transition) -> None:
        """Change the state, or raise if the transition is not allowed now."""
        after = TRANSITIONS[transition].get(self.state)
        if after is None:
            raise IllegalTransitionError(f"a claim attempt that is {self.state} cannot {transition}")
        self.state = after


class UnconfirmedClaims:
    """The attempts whose messages no handler has got: the next claim or a drain asks Redis what they took.

    An attempt stays on this list while it is being recovered, so that a Ctrl-C at any moment loses none.
    """

    def __init__(self, is_ours: Callable[[ReplySlot], bool], lock: AbstractContextManager[Any]) -> None:
        self._is_ours = is_ours  # after a fork the parent recovers its own
        self.attempts: list[ClaimAttempt] = []  # those of a parent process among them
        self._lock = lock

    def ours(self) -> list[ClaimAttempt]:
        """Return the attempts of this process."""
        return [attempt for attempt in self.attempts if self._is_ours(attempt.slot)]

    def release(self, attempt: ClaimAttempt, consumer: object) -> bool:
        """End a consumer's part in an attempt; True if its slot is free now. Nothing happens the second time."""
        state = attempt.state
        if state is IDLE:
            if self.attempts:
                self.discard(attempt)
            attempt.apply("close")
            return True
        if state in TRANSITIONS["abandon"]:
            self._replace(attempt)
        else:
            self.leave_to_others(consumer)
        return False

    def _replace(self, attempt: ClaimAttempt) -> None:
        """Put a new attempt on the list: the old one may still wait to be handed over, and must not free the slot."""
        with self._lock:
            others = [one for one in self.attempts if one is not attempt]
            others.append(ClaimAttempt(attempt.part, attempt.slot, attempt.call, UNCONFIRMED))
            # Two plain stores, one after the other: no Ctrl-C can come between them.
            self.attempts = others
            attempt.state = ABANDONED

    def discard(self, attempt: ClaimAttempt) -> None:
        """Forget an attempt that is known to hold nothing, or that is about to be handed over."""
        with self._lock:
            self.attempts = [one for one in self.attempts if one is not attempt]

    def recover_next(self, consumer: object) -> ClaimAttempt | None:
        """An attempt for this consumer to recover; None if there is none that nobody else recovers."""
        with self._lock:
            self.attempts = self.ours()
            for attempt in self.attempts:
                if attempt.state is UNCONFIRMED:
                    attempt.recovered_by = consumer
                    attempt.apply("recover")
                    return attempt
        return None

    def leave_to_others(self, consumer: object) -> None:
        """Stop recovering: whatever this consumer had begun to recover is there for the next one."""
        for attempt in self.attempts:
            if attempt.recovered_by is consumer and attempt.state in TRANSITIONS["leave"]:
                attempt.apply("leave")
                attempt.recovered_by = None
