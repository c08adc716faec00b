"""From publish to handler: an idle consumer of every contender at once, publishes at random moments."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from bench.contender import Worker
from bench.course import Course

Delays = dict[str, list[float]]

# From just after the consumer went to wait, over more than a quarter of a second: whoever polls at that
# interval is met at every phase of it.
_PAUSE_SECONDS = (0.02, 0.32)
# Nobody else publishes while a message is on its way to a waiting consumer: that takes about a millisecond.
_QUIET_SECONDS = 0.005


def measure(pairs: list[tuple[Worker, Worker]], colour: str, seconds: float, course: Course) -> Delays:
    """The delays of every contender, in seconds; a pair is who listens and who sends."""
    delays: Delays = {}
    course.stage(f"latency, {colour}", seconds * len(pairs))
    quiet, end = Lock(), time.monotonic() + seconds

    def hear(pair: tuple[Worker, Worker]) -> None:
        with course.attempt(f"{pair[0].name}, {colour} latency"):
            # The first one opens connections and loads scripts; it is not kept.
            _one(*pair, colour, quiet)
            heard = delays[pair[0].name] = [_one(*pair, colour, quiet)]
            while (now := time.monotonic()) < end:
                heard.append(_one(*pair, colour, quiet))
                course.step(time.monotonic() - now)

    with ThreadPoolExecutor(len(pairs)) as pool:
        list(pool.map(hear, pairs))
    return delays


def _one(listener: Worker, sender: Worker, colour: str, quiet: Lock) -> float:
    listener.tell("listen", colour=colour)
    time.sleep(random.uniform(*_PAUSE_SECONDS))
    with quiet:
        sender.ask("send", colour=colour)
        time.sleep(_QUIET_SECONDS)
    return float(listener.answer())
