"""The simulated network: what it loses."""

from random import Random

import pytest
from redis.exceptions import TimeoutError

from simulator.loop import Process, SimulatedLoop
from simulator.lua import interpreter
from simulator.network import Network
from simulator.server import Server


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_process_that_is_cut_off_gets_no_reply_that_is_on_its_way(is_cut_off: bool):
    """The server has executed the request, and its caller cannot know."""
    loop = SimulatedLoop(Random(0))  # type: ignore[abstract]  # no sockets
    process, ended = Process("consumer", 1), list[str]()
    server = Server(interpreter(), loop.clock_us, print)
    network = Network(loop, Random(0), [server], print)

    def execute() -> str:
        loop.spawn(loop.world, cut_off())
        return "done"

    async def cut_off() -> None:
        if is_cut_off:
            network.cut_off.add(process)

    async def ask() -> None:
        try:
            ended.append(await network.send(process, server, "claim", execute, 0.5))
        except TimeoutError:
            ended.append("no reply")

    loop.start(process, ask())
    loop.run(lambda: bool(ended))
    loop.close_all()
    assert ended == ["no reply" if is_cut_off else "done"]
