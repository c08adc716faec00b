"""Real signals stop the loops of a real process, and the same signal again acts as if there were no loop."""

import signal
from typing import Any

import pytest

from tests.contract.loops import words
from tests.contract.shells import LIMIT_SECONDS, Shell, until
from tests.contract.test_signals import says, worker

pytestmark = [pytest.mark.topic("Interrupts"), pytest.mark.both_shells]


# Two queues, and a handler that says when it begins and ends when the test says so.
QUEUES = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
warnings.simplefilter("ignore", ResourceWarning)  # the clients end with the process

def named(queue):
    client = {redis}.from_url(url)
    return {module}.RedisMessageQueue(queue, client=client, enable_completed_queue=True)

def dispositions():
    return [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]

def said(summary):
    return summary.handled, summary.requeued, summary.stopped_by and summary.stopped_by.name

{async_}def handle(message):
    os.write(1, b"at work\\n")  # whole, beside other threads
    while not redis.Redis.from_url(url).exists("go"):
        {await_}{sleep}(0.01)
"""

ALONE = (
    QUEUES
    + """
{async_}def main():
    before = dispositions()
    print(said({await_}named("q").run(handle, prefetch=2)), dispositions() == before, flush=True)

{run}
"""
)


async def began(shell: Shell, process: Any, times: int = 1) -> None:
    assert [says(process) for _ in range(times)] == ["at work"] * times


def end_of(process: Any) -> tuple[int, str, str]:
    output, complaints = process.communicate(timeout=2 * LIMIT_SECONDS)
    return process.returncode, output.strip(), complaints


@pytest.mark.promise(
    "In the main thread, SIGTERM and SIGINT stop `run()` gracefully where they have their default handlers."
)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_a_loop_when_its_handler_has_finished(shell: Shell, signum: signal.Signals) -> None:
    """What was claimed ahead is requeued, the summary has the signal, and the signal handlers are what they were."""
    queue = shell.queue()
    await queue.publish_many(words(3))
    with worker(shell, ALONE) as process:
        await began(shell, process)
        process.send_signal(signum)
        assert await until(lambda: shell.pending(queue) == 1)  # it goes on
        shell.redis.set("go", 1)
        assert end_of(process) == (0, f"(1, 1, '{signum.name}') True", "")
    assert shell.pending(queue) == 2


@pytest.mark.promise(
    "In the main thread, SIGTERM and SIGINT stop `run()` gracefully where they have their default handlers."
)
async def test_a_signal_stops_a_loop_that_waits(shell: Shell) -> None:
    """Promptly: not when a message comes."""
    with worker(shell, ALONE) as process:
        assert await until(lambda: shell.redis.info("clients")["blocked_clients"] == 1)
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == (0, "(0, 0, 'SIGTERM') True", "")


# Its own signals: two of one kind from outside might arrive together, and count as one.
AGAIN = (
    QUEUES
    + """
{async_}def main():
    {async_}def signalling(message):
        for number in {signals}:
            print("at work", flush=True)
            os.kill(os.getpid(), number)
            {await_}{sleep}(0.1)
        {await_}handle(message)

    {await_}named("q").run(signalling)

{run}
"""
)


@pytest.mark.promise("While a loop stops, the same signal again acts as if there were no loop.")
@pytest.mark.parametrize(
    ("signum", "status", "named"), [(signal.SIGTERM, -15, ""), (signal.SIGINT, -2, "KeyboardInterrupt")]
)
async def test_the_same_signal_again_has_its_usual_effect(shell: Shell, signum: Any, status: int, named: str) -> None:
    """SIGTERM ends the process, Ctrl-C raises; another signal than the first one counts as a first one."""
    queue = shell.queue()
    await queue.publish("a")
    other = signal.SIGINT if signum == signal.SIGTERM else signal.SIGTERM
    with worker(shell, AGAIN.replace("{signals}", f"{[int(signum), int(other), int(signum)]}")) as process:
        returned, output, complaints = end_of(process)
        assert (returned, output) == (status, "at work\n" * 2 + "at work")
        assert named in complaints
    assert shell.processing(queue) == 1  # its lease recovers it


# The main thread says when its signal handler has run: until then another thread may begin with another message.
NOTICING = """
from redis_message_queue.process import loop_signals

noticed = []

{async_}def noticing(message):
    os.write(1, b"at work\\n")
    while not redis.Redis.from_url(url).exists("go"):
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and loop_signals._loop_signals._received and not noticed:
            noticed.append(True)
            os.write(1, b"noticed\\n")
        {await_}{sleep}(0.01)
"""

TOGETHER = {
    "sync": """
def main():
    before, ended = dispositions(), []
    beside = threading.Thread(target=lambda: ended.append(said(named("other").run(noticing))))
    beside.start()
    ended.append(said(named("q").run(noticing)))
    beside.join()
    print(*ended, dispositions() == before, flush=True)
""",
    "asyncio": """
async def main():
    before, ended = dispositions(), []

    async def one(queue):
        ended.append(said(await queue.run(noticing)))
        if len(ended) == 1:
            ended.append(dispositions() == before)

    await asyncio.gather(one(named("q")), one(named("other")))
    assert ended.pop(1) is False  # the first loop to end leaves the signal handlers to the other one
    print(*ended, dispositions() == before, flush=True)
""",
}


@pytest.mark.promise("All loops of a process share one registration: a signal stops all of them.")
async def test_a_signal_stops_all_loops_of_the_process(shell: Shell) -> None:
    """Those of `asyncio.gather`, and those of other threads beside one of the main thread."""
    for name in ("q", "other"):
        await shell.queue(name).publish_many(words(2))
    with worker(shell, QUEUES + NOTICING + TOGETHER[shell.name] + "\n{run}\n") as process:
        await began(shell, process, 2)
        process.send_signal(signal.SIGINT)
        assert says(process) == "noticed"
        shell.redis.set("go", 1)
        assert end_of(process) == (0, "(1, 0, 'SIGINT') (1, 0, 'SIGINT') True", "")


IN_ROUNDS = (
    QUEUES
    + """
{async_}def main():
    before, queue = dispositions(), named("q")
    for _ in range(3):
        assert said({await_}queue.run(handle, until_empty=True)) == (0, 0, None)
        assert dispositions() == before
    try:
        print("between", flush=True)
        while True:
            {await_}{sleep}(0.01)
    except {interrupted}:
        print("interrupted", flush=True)
    {await_}queue.publish("a")
    while True:
        summary = {await_}queue.run(handle, until_empty=True)
        {await_}queue.publish("a")
        if summary.stopped_by:
            break
    print(said(summary), dispositions() == before, flush=True)

{run}
"""
)


@pytest.mark.promise(
    "In the main thread, SIGTERM and SIGINT stop `run()` gracefully where they have their default handlers."
)
async def test_loops_one_after_the_other_take_the_signals_only_while_they_run(shell: Shell) -> None:
    """`run(until_empty=True)` in a loop: `stopped_by` says that it was stopped, and in between nothing is caught."""
    interrupted = {"sync": "KeyboardInterrupt", "asyncio": "asyncio.CancelledError"}[shell.name]
    with worker(shell, IN_ROUNDS.replace("{interrupted}", interrupted)) as process:
        assert says(process) == "between"
        process.send_signal(signal.SIGINT)
        assert says(process) == "interrupted"
        await began(shell, process)
        process.send_signal(signal.SIGTERM)
        shell.redis.set("go", 1)
        assert end_of(process) == (0, "(1, 0, 'SIGTERM') True", "")


SEVERAL = (
    QUEUES
    + """
{async_}def main():
    before = dispositions()
    queues = {{named(name): 1 for name in ("q", "other")}}
    first = next(iter(queues))
    seen = 0

    {async_}def endless(message):
        nonlocal seen
        seen += 1
        {await_}first.publish("again")
        if seen == 20:
            print("at work", flush=True)

    summaries = {await_}{module}.run_queues(queues, endless, until_empty=True)
    print(summaries[0].handled >= 20, *[one.stopped_by.name for one in summaries], dispositions() == before)

{run}
"""
)


@pytest.mark.promise(
    "In the main thread, SIGTERM and SIGINT stop `run()` gracefully where they have their default handlers."
)
async def test_a_signal_stops_several_queues_and_begins_no_further_round(shell: Shell) -> None:
    """`run_queues(until_empty=True)` looks again after each round that found something."""
    await shell.queue("q").publish("a")
    with worker(shell, SEVERAL) as process:
        await began(shell, process)
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == (0, "True SIGTERM SIGTERM True", "")


LEFT_ALONE = (
    QUEUES
    + """
{async_}def main():
    if {case!r} == "handler":
        signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
    options = {{"signals": False}} if {case!r} == "argument" else {{}}
    queue = named("q")
    if {case!r} == "interrupt":
        event = threading.Event()
        queue = {module}.RedisMessageQueue(
            "q", client={redis}.from_url(url), interrupt=EventDrivenInterruptHandler(event)
        )
    before = dispositions()

    {async_}def checked(message):
        print(dispositions()[0] == before[0], dispositions()[1] == before[1], flush=True)
        {await_}handle(message)

    print(said({await_}queue.run(checked, **options)), flush=True)

{run}
"""
)


@pytest.mark.promise("`run()` leaves signals alone that have a handler, or if the queue has an `interrupt`.")
@pytest.mark.promise("`run(signals=False)` leaves all signals alone.")
@pytest.mark.parametrize("case", ["handler", "interrupt", "argument"])
async def test_signals_that_are_not_ours_are_left_alone(shell: Shell, case: str) -> None:
    """Each signal by itself: a handler for SIGTERM leaves SIGINT to the loop."""
    await shell.queue().publish("a")
    with worker(shell, LEFT_ALONE.replace("{case!r}", repr(case))) as process:
        assert says(process) == ("True False" if case == "handler" else "True True")
        await began(shell, process)
        process.send_signal(signal.SIGTERM)
        if case != "handler":
            assert end_of(process) == (-15, "", "")
            return
        assert says(process) == "mine"
        process.send_signal(signal.SIGINT)
        shell.redis.set("go", 1)
        assert end_of(process) == (0, "(1, 0, 'SIGINT')", "")


FORKS = (
    QUEUES
    + """
{async_}def main():
    before = dispositions()

    {async_}def fork(message):
        child = os.fork()
        if child == 0:
            if dispositions() == before:
                os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), dispositions() == before, flush=True)
        {await_}handle(message)

    print(said({await_}named("q").run(fork)), flush=True)

{run}
"""
)


@pytest.mark.promise("A process that is forked in a loop has its default signal handlers.")
async def test_a_forked_child_has_the_default_handlers(shell: Shell) -> None:
    """Its parent keeps its own, and is stopped by them."""
    await shell.queue().publish("a")
    with worker(shell, FORKS) as process:
        assert says(process) == "-15 False"
        await began(shell, process)
        process.send_signal(signal.SIGTERM)
        shell.redis.set("go", 1)
        assert end_of(process) == (0, "(1, 0, 'SIGTERM')", "")
