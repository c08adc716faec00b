"""The proof: what went in, what came out, and whether the two agree."""

import json
from dataclasses import dataclass
from typing import Any

import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.demo.plan import ANSWERS, DIARY


@dataclass(frozen=True, slots=True)
class Balance:
    """Order numbers as four witnesses saw them: the producers, the handlers, the lists of the queue, its insides."""

    accepted: list[int]  # producers: publish() answered True
    suppressed: list[int]  # producers: publish() answered False
    finished: list[int]  # handlers: worked to the end
    finished_again: list[int]  # handlers: the same, when it was not the first delivery
    completed: list[int]  # the queue's completed list
    dead: list[int]  # the queue's dead-letter list
    left_behind: int  # messages that are still pending, in processing or failed

    @classmethod
    def count(cls, client: redis.Redis, queue: RedisMessageQueue) -> "Balance":
        """Ask the witnesses."""
        answers = read(client, ANSWERS)
        finished = [entry for entry in read(client, DIARY) if entry["event"] == "finished"]
        return cls(
            accepted=_orders(answer for answer in answers if answer["accepted"]),
            suppressed=_orders(answer for answer in answers if not answer["accepted"]),
            finished=_orders(finished),
            finished_again=_orders(entry for entry in finished if entry["delivery"] > 1),
            completed=_orders(read(client, queue.key.completed)),
            dead=_orders(read(client, queue.key.dead_letter)),
            left_behind=unsettled(queue) + client.llen(queue.key.failed),
        )

    @property
    def processed(self) -> int:
        """Distinct orders."""
        return len(set(self.completed))

    @property
    def lost(self) -> int:
        return len(self.accepted) - self.processed - len(self.dead)

    @property
    def completed_twice(self) -> int:
        """By the queue's list or by the handlers' diary, whichever shows more."""
        return max(_repeated(self.completed), _repeated(self.finished))

    def complaints(self) -> list[str]:
        """What does not agree; empty if the balance holds."""
        settled, accepted = [*set(self.completed), *set(self.dead)], set(self.accepted)
        checks = {
            f"{_repeated(self.accepted)} orders were accepted more than once": _repeated(self.accepted),
            f"accepted and never settled: {_some(accepted - set(settled))}": accepted - set(settled),
            f"settled and never accepted: {_some(set(settled) - accepted)}": set(settled) - accepted,
            f"{self.completed_twice} orders were completed twice": self.completed_twice,
            f"{_repeated(settled)} orders are both completed and dead": _repeated(settled),
            f"{self.lost} orders were lost": self.lost,
            f"{self.left_behind} messages were left in the queue": self.left_behind,
            "the handlers and the completed list disagree": set(self.finished) ^ set(self.completed),
            "no order had to be recovered, so nothing was shown": not self.finished_again,
            "no order became a dead letter, so nothing was shown": not self.dead,
        }
        return [complaint for complaint, wrong in checks.items() if wrong]

    def rows(self) -> list[tuple[str, int, str]]:
        """The table: what, how many, and who says so."""
        accepted, dead = len(self.accepted), len(self.dead)
        return [
            ("published", accepted, "publish() answered True"),
            ("suppressed as duplicates", len(self.suppressed), "publish() answered False"),
            ("processed", self.processed, f"the completed list; the handlers say {len(set(self.finished))}"),
            ("recovered after a crash", len(set(self.finished_again)), "processed, and not at the first delivery"),
            ("dead-lettered", dead, "the dead-letter list"),
            ("lost", self.lost, f"{accepted} - {self.processed} - {dead}"),
            ("completed twice", self.completed_twice, "repeated in that list or by the handlers"),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The balance for a script that reads it."""
        return {
            "published": len(self.accepted),
            "suppressed": len(self.suppressed),
            "processed": self.processed,
            "processed_by_handlers": len(set(self.finished)),
            "recovered": len(set(self.finished_again)),
            "dead_lettered": len(self.dead),
            "lost": self.lost,
            "completed_twice": self.completed_twice,
            "left_behind": self.left_behind,
            "complaints": self.complaints(),
        }


def read(client: redis.Redis, key: str, start: int = 0) -> list[Any]:
    """The JSON values of a list."""
    return [json.loads(value) for value in client.lrange(key, start, -1)]


def unsettled(queue: RedisMessageQueue) -> int:
    """How many messages wait or are in flight."""
    found = queue.stats()
    return found.pending + found.processing


def _orders(entries: Any) -> list[int]:
    return [entry["order"] for entry in entries]


def _repeated(orders: list[int]) -> int:
    return len(orders) - len(set(orders))


def _some(orders: set[int]) -> str:
    shown = ", ".join(map(str, sorted(orders)[:5]))
    return f"{shown} and {len(orders) - 5} more" if len(orders) > 5 else shown
