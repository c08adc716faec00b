"""The claims that nobody saw the answer of: each may hold a message, and is asked until that is known."""

from __future__ import annotations

from redis_message_queue.protocol.calls import Attempt, Calls


class UnsureClaims:
    """A list that a Ctrl-C at any moment leaves whole: an attempt is on it until it is settled what it took."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._attempts: list[Attempt] = []
        self._lock = calls.port.lock()

    def __len__(self) -> int:
        if not self._attempts:
            return 0
        return sum(self._calls.owns(attempt.slot) for attempt in self._attempts)  # not what a fork has brought along

    def note(self, attempt: Attempt) -> None:
        """Whoever made this attempt has left it; the next may ask."""
        with self._lock:
            if attempt in self._attempts:
                attempt.asker = None
            else:
                # A new entry: the old one may still wait to be handed over, and must not free the slot.
                attempt.abandoned = True
                self._attempts.append(Attempt(attempt.slot, attempt.call, unsure=True))

    def strike_off(self, attempt: Attempt) -> None:
        """It is known what became of it."""
        with self._lock:
            if attempt in self._attempts:
                self._attempts.remove(attempt)

    def next_for(self, asker: object) -> Attempt | None:
        """One that nobody else asks, marked as this asker's."""
        with self._lock:
            # What a fork has brought along is the parent's to ask.
            self._attempts = [attempt for attempt in self._attempts if self._calls.owns(attempt.slot)]
            for attempt in self._attempts:
                if attempt.asker is None:
                    attempt.asker = asker
                    return attempt
        return None

    def leave_to_others(self, asker: object) -> None:
        """Whatever this asker had begun to ask is there for the next one; a Ctrl-C may have met it anywhere."""
        for attempt in self._attempts:
            if attempt.asker is asker:
                attempt.asker = None
