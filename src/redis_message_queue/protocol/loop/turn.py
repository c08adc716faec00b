"""The turn of a loop: one idle worker claims for all of them, and the others wait for it."""

from __future__ import annotations

from collections import OrderedDict

from redis_message_queue.protocol.port import Notification, Runtime

_AT_ONCE = 2


class Turn:
    """Belongs to one idle worker, or to none.

    Whoever gives it back wakes two of the others. Each that finds work wakes two more, until there is neither work nor
    a turn for them: threads that wake for nothing cost more than a quick handler. A woken worker looks for work itself,
    because another one that has just become idle may have been quicker.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self._new_notification = runtime.notification
        self._is_taken = False
        self.dismissed = 0  # how often all that waited were told to end
        self._waiting: OrderedDict[Notification, None] = OrderedDict()

    @property
    def idle_workers(self) -> int:
        """How many workers have nothing to do, the one that claims among them."""
        return len(self._waiting) + self._is_taken

    def begin(self) -> bool:
        """Take the turn. Returns False if another worker has it."""
        with self._lock:
            was_taken, self._is_taken = self._is_taken, True
        return not was_taken

    def end(self, work_items: int) -> None:
        """Give the turn back, when there is work for so many of the others."""
        with self._lock:
            self._is_taken = False
            self.pass_on(work_items)

    def pass_on(self, work_items: int) -> None:
        """Wake others for the work that is left, and for the turn if nobody has it."""
        if self._waiting:
            self.wake(min(_AT_ONCE, work_items + (not self._is_taken)))

    def wake(self, workers: int) -> None:
        """Wake so many of those that wait."""
        with self._lock:
            for _ in range(min(workers, len(self._waiting))):
                notification, _ = self._waiting.popitem(last=False)
                notification.send()

    def dismiss(self) -> None:
        """Tell all that wait to end: there is nothing to do, and each of them would find that out by itself."""
        with self._lock:
            self.dismissed += 1
            self.wake(len(self._waiting))

    async def wait(self, seconds: float) -> bool:
        """Wait to be woken, or for this long. Returns False if the time was up."""
        notification = self._new_notification()
        with self._lock:
            if not self._is_taken:
                return True
            self._waiting[notification] = None
        try:
            await notification.wait(seconds)
        finally:
            with self._lock:
                was_woken = notification not in self._waiting
                self._waiting.pop(notification, None)
        return was_woken
