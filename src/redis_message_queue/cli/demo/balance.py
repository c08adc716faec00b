"""The balance of the demo: what was published, what was processed, and whether the two agree."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Balance:
    """Order numbers from three sources: the producers, the handlers, and the queue."""

    accepted: list[int]  # producers: publish() returned True
    suppressed: list[int]  # producers: publish() returned False
    finished: list[int]  # handlers: returned
    finished_again: list[int]  # handlers: returned, and it was not the first delivery
    completed: list[int]  # the completed list
    dead: list[int]  # the dead-letter list
    left_behind: int  # messages that are still pending, in processing or failed

    def to_dict(self) -> dict[str, int]:
        processed = len(set(self.completed))
        return {
            "published": len(self.accepted),
            "suppressed": len(self.suppressed),
            "processed": processed,
            "processed_by_handlers": len(set(self.finished)),
            "recovered": len(set(self.finished_again)),
            "dead_lettered": len(self.dead),
            "lost": len(self.accepted) - processed - len(self.dead),
            "completed_twice": max(_repeated(self.completed), _repeated(self.finished)),
            "left_behind": self.left_behind,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the table that the demo prints."""
        numbers = self.to_dict()
        sources = {
            "published": "publish() returned True",
            "suppressed": "publish() returned False: duplicates",
            "processed": f"the completed list; the handlers say {numbers['processed_by_handlers']}",
            "recovered": "processed, and not at the first delivery",
            "dead_lettered": "the dead-letter list",
            "lost": f"{numbers['published']} - {numbers['processed']} - {numbers['dead_lettered']}",
            "completed_twice": "repeated in that list, or by the handlers",
        }
        return [
            {"what": name.replace("_", " "), "orders": numbers[name], "according to": sources[name]} for name in sources
        ]

    def complaints(self) -> list[str]:
        """Return what does not agree; nothing if the balance holds."""
        numbers = self.to_dict()
        settled, accepted = [*set(self.completed), *set(self.dead)], set(self.accepted)
        checks: list[tuple[Any, str]] = [
            (_repeated(self.accepted), "{} orders were accepted more than once"),
            (accepted - set(settled), "accepted and never settled: {}"),
            (set(settled) - accepted, "settled and never accepted: {}"),
            (numbers["completed_twice"], "{} orders were completed twice"),
            (_repeated(settled), "{} orders are both completed and dead"),
            (numbers["lost"], "{} orders were lost"),
            (self.left_behind, "{} messages were left in the queue"),
            (set(self.finished) ^ set(self.completed), "the handlers and the completed list disagree"),
            (not self.finished_again, "no order had to be recovered, so the demo shows nothing"),
            (not self.dead, "no order became a dead letter, so the demo shows nothing"),
        ]
        return [
            text.format(", ".join(map(str, sorted(wrong))) if isinstance(wrong, set) else wrong)
            for wrong, text in checks
            if wrong
        ]


def _repeated(orders: list[int]) -> int:
    return len(orders) - len(set(orders))
