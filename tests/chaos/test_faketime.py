"""The clock of a server can be stepped while it runs, and no other clock moves."""

import time
from pathlib import Path

from chaos.faketime import FakeClock, find_library
from redis_message_queue.embedded import EmbeddedRedis
from tests.concurrency import until


def test_the_clock_of_a_server_steps_forward_and_back(tmp_path: Path, server_setting: str) -> None:
    library = find_library()
    assert library is not None, "the dependency group `test` installs libfaketime"
    clock = FakeClock(tmp_path, library, server_setting)
    with EmbeddedRedis(binary=clock.program, password=False) as server, server.client() as client:

        def offset() -> float:
            return float(client.time()[0]) - time.time()

        assert abs(offset()) < 30
        clock.step(3600)
        until(lambda: offset() > 3000, "the clock has stepped forward")
        clock.step(-7200)
        until(lambda: offset() < -3000, "the clock has stepped back")
        clock.step(3600)
        until(lambda: abs(offset()) < 30, "the clock is right again")
