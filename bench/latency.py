"""The time from publish to handler, with an idle consumer per contender and publishes at random moments."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from bench.contender import Worker
from bench.progress import RunProgress

Delays = dict[str, list[float]]

# The pause between two messages spans more than a quarter of a second, so that a consumer that polls at such an
# interval gets messages at every phase of it.
_PAUSE_SECONDS = (0.02, 0.32)
# No other contender publishes while a message is under way, which takes about a millisecond.
_QUIET_SECONDS = 0.005
# Shorter than the second for which a consumer waits at a time, and at every phase of a server's timer of 100 ms.
_DELAY_SECONDS = (0.1, 0.6)


def measure(pairs: list[tuple[Worker, Worker]], shell: str, seconds: float, progress: RunProgress) -> Delays:
    """The delays of every contender, in seconds. A pair is the consumer and the producer of one contender."""
    delays: Delays = {}
    progress.stage(f"latency, {shell}", seconds * len(pairs))
    quiet, end = Lock(), time.monotonic() + seconds

    def measure_pair(pair: tuple[Worker, Worker]) -> None:
        with progress.attempt(f"{pair[0].name}, {shell} latency"):
            # The first message opens connections and loads scripts; its delay is dropped.
            _one(*pair, shell, quiet)
            found = delays[pair[0].name] = [_one(*pair, shell, quiet)]
            while (now := time.monotonic()) < end:
                found.append(_one(*pair, shell, quiet))
                progress.step(time.monotonic() - now)

    with ThreadPoolExecutor(len(pairs)) as pool:
        list(pool.map(measure_pair, pairs))
    return delays


def measure_due(pair: tuple[Worker, Worker], shell: str, seconds: float, progress: RunProgress) -> list[float]:
    """How many seconds after its due time a delayed message reaches the handler of an idle consumer."""
    progress.stage(f"delays, {shell}", seconds)
    found: list[float] = []
    listener, sender = pair
    end = time.monotonic() + seconds
    with progress.attempt(f"{listener.name}, {shell} due"):
        while not found or time.monotonic() < end:
            now = time.monotonic()
            listener.send("listen", shell=shell)
            sender.request("send_later", shell=shell, seconds=random.uniform(*_DELAY_SECONDS))
            found.append(float(listener.receive()))
            progress.step(time.monotonic() - now)
    return found[1:] or found  # the first one opens connections and loads scripts


def _one(listener: Worker, sender: Worker, shell: str, quiet: Lock) -> float:
    listener.send("listen", shell=shell)
    time.sleep(random.uniform(*_PAUSE_SECONDS))
    with quiet:
        sender.request("send", shell=shell)
        time.sleep(_QUIET_SECONDS)
    return float(listener.receive())
