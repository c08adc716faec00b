"""The entry that a loop keeps in Redis while it runs."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from redis_message_queue.protocol.loop.run_options import RunOptions
from redis_message_queue.protocol.loop.worker_loop import Loop
from redis_message_queue.protocol.operate.workers import in_order, merged_workers
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.sync.handlers import THREADS
from redis_message_queue.values.errors import LuaScriptError
from tests.protocol.port import Lost, MemoryPort
from tests.protocol.setup import Setup
from tests.protocol.test_fast_path import ONE_AT_A_TIME

pytestmark = pytest.mark.topic("Operator tools")


def run_for(setup: Setup, queue: QueueProtocol, seconds: float, handler: Any = lambda message: None) -> None:
    """Run a loop until so much time has passed."""
    loop = Loop(queue, RunOptions(handler=handler, **ONE_AT_A_TIME | {"until_empty": False}), THREADS)
    setup.memory.at(seconds, loop.stop)
    finish(loop.run())


def entries(setup: Setup) -> list[bytes]:
    return setup.members_of(setup.keys.connected_workers)


@pytest.mark.promise(
    "An idle `run()` sends at most two commands per second, whatever its concurrency and wait interval."
)
def test_an_idle_loop_keeps_its_entry_within_two_commands_a_second():
    setup = Setup()
    port = setup.port()
    run_for(setup, setup.queue(port), 195.5)
    sent = Counter(port.verbs())
    assert sent["announce_worker"] == 21  # at 1 s, 11 s, ... 191 s, and at the end
    assert sent.total() + len(port.waits) <= 2 * 195.5 + 2


@pytest.mark.promise("`workers()` shows each process that runs a consumer loop, also while there is nothing to do.")
def test_an_entry_is_there_while_the_loop_runs_and_gone_when_it_ends():
    setup = Setup()
    seen: dict[float, int] = {}
    for at in (0.5, 1.5, 25.0, 55.0):
        setup.memory.at(at, partial(lambda when: seen.update({when: len(entries(setup))}), at))
    run_for(setup, setup.queue(), 60.0)
    assert seen == {0.5: 0, 1.5: 1, 25.0: 1, 55.0: 1}
    assert not entries(setup)


@pytest.mark.promise("`workers()` shows each process that runs a consumer loop, also while there is nothing to do.")
def test_an_entry_comes_back_when_redis_has_lost_it():
    setup = Setup()
    setup.memory.at(20.0, lambda: setup.memory.obey("UNLINK", setup.keys.connected_workers))
    seen = []
    setup.memory.at(22.0, lambda: seen.append(len(entries(setup))))
    run_for(setup, setup.queue(), 30.0)
    assert seen == [1]


class RefusingPort(MemoryPort):
    """Its server takes no entries, for this reason."""

    reason: Exception = Lost("no connection")
    refusals = 0

    async def call(self, command: Any, extra_keys: Any, arguments: Any) -> Any:
        if command.script.name == "announce_worker":
            self.refusals += 1
            raise self.reason
        return await super().call(command, extra_keys, arguments)


@pytest.mark.promise("A server that refuses the entry of a worker does not disturb its loop.")
@pytest.mark.parametrize(
    ("reason", "lines"), [(Lost("no connection"), 0), (LuaScriptError("NOPERM this user has no permissions"), 1)]
)
def test_a_loop_goes_on_without_its_entry(reason: Exception, lines: int, caplog: pytest.LogCaptureFixture):
    setup, handled = Setup(), []
    port = RefusingPort(setup.memory)
    port.reason = reason
    queue = setup.queue()

    setup.memory.at(40.0, lambda: finish(queue.publisher.publish("late")))
    run_for(setup, setup.queue(port), 50.0, lambda message: handled.append(message.payload))
    assert handled == [b"late"]
    assert port.refusals == 5
    assert [record.getMessage() for record in caplog.records if "entry of this worker" in record.getMessage()] == [
        f"orders: Redis refused the entry of this worker, so rmq workers does not show it ({reason})"
    ] * lines


def entry(process: str, *, since: int, claimed: int = 0, concurrency: Any = 1, name: str | None = None) -> bytes:
    told = f'"process":"{process}","host":"host7","pid":4711,"version":"0.1.0","concurrency":{concurrency}'
    named = "null" if name is None else f'"{name}"'
    return f'{since}000000 {claimed}000000 {{{told},"name":{named}}}'.encode()


@pytest.mark.promise("`workers()` shows each process that runs a consumer loop, also while there is nothing to do.")
def test_several_loops_of_a_process_are_one_worker():
    found = in_order(
        merged_workers(
            [
                entry("bb", since=50),
                entry("aa", since=30, claimed=70, concurrency=4, name="packer"),
                entry("aa", since=20, claimed=60, concurrency=2, name="packer"),
            ]
        )
    )
    assert [(one.consumer, one.concurrency, one.since.timestamp()) for one in found] == [
        ("packer@host7:4711", 6, 20.0),
        ("host7:4711", 1, 50.0),
    ]
    assert found[0].last_claim is not None and found[0].last_claim.timestamp() == 70.0
    assert found[1].last_claim is None


@pytest.mark.promise("Foreign values in internal keys are no messages: what uses these keys goes on without them.")
@pytest.mark.parametrize(
    "foreign", [b"", b"x", b"1 2 3", b"1 2 {}", b"1 2 []", b"a b {}", entry("aa", since=1, concurrency='"many"')]
)
def test_an_entry_of_another_program_is_left_out(foreign: bytes):
    assert [one.concurrency for one in merged_workers([foreign, entry("bb", since=50)]).values()] == [1]
