"""Interrupt handlers, tested with real processes and real signals."""

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from redis_message_queue.process.interrupt import (
    BaseGracefulInterruptHandler,
    EventDrivenInterruptHandler,
    GracefulInterruptHandler,
)
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError
from tests.contract.programs import running
from tests.contract.shells import LIMIT_SECONDS
from tests.tables import row

pytestmark = [
    pytest.mark.topic("Interrupts"),
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork"),
    pytest.mark.both_shells,
]

# Every process ends itself after 100 s, so a broken handler fails a test and never hangs it. The runner may be
# a background job with SIGINT ignored, which children inherit: the defaults are put back first.
PREAMBLE = """
import asyncio, functools, os, signal, sys, threading, time
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.process.interrupt import EventDrivenInterruptHandler, GracefulInterruptHandler
signal.alarm(100)
signal.signal(signal.SIGINT, signal.default_int_handler)
for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(each, signal.SIG_DFL)

def send(signum):
    os.kill(os.getpid(), signum)

def wait_for(interrupt):
    while not interrupt.is_interrupted():
        time.sleep(0.005)

def refusal(*args):
    try:
        GracefulInterruptHandler(*args)
    except ValueError as error:
        assert isinstance(error, ConfigurationError)
        return str(error)
    raise AssertionError("constructed")

def fork(work):
    # Returns the child's pid; the child exits 0 when work() returned.
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(100)
        work()
        code = 0
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(code)

def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def program(script: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return running(PREAMBLE + textwrap.dedent(script))


def run(script: str) -> str:
    """The output of a script that has to end well."""
    with program(script) as process:
        output, complaints = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, complaints
        return output


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def user_signals() -> Iterator[tuple[signal.Signals, signal.Signals]]:
    """Two signals at their default, which nobody else in the test process uses."""
    pair = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(signum, signal.SIG_DFL) for signum in pair]
    yield pair
    for signum, disposition in zip(pair, before, strict=True):
        signal.signal(signum, disposition)


# The first signal


WORKER = """
    interrupt = GracefulInterruptHandler()
    while not interrupt.is_interrupted():
        print("at work")
        time.sleep(0.2)
        print("work done")
    print("left")
"""


@pytest.mark.promise("`GracefulInterruptHandler` handles SIGINT, SIGTERM and SIGHUP, or the signals that you pass.")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_worker_finishes_its_work_before_it_leaves(signum: signal.Signals) -> None:
    """Each default signal, sent from outside in the middle of a piece of work, ends the loop and exits 0."""
    with program(WORKER) as process:
        assert says(process) == "at work"
        process.send_signal(signum)
        output, complaints = process.communicate(timeout=LIMIT_SECONDS)
        assert (process.returncode, output, complaints) == (0, "work done\nleft\n", "")


@pytest.mark.promise("The first signal sets a flag, raises nothing, and is visible in every thread.")
def test_nothing_is_interrupted_before_a_signal() -> None:
    """The flag starts False, turns True with the first signal, and no exception is raised."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        print(interrupt.is_interrupted())
        send(signal.SIGTERM)
        print(interrupt.is_interrupted())
    """)
        == "False\nTrue\n"
    )


@pytest.mark.promise("The first signal sets a flag, raises nothing, and is visible in every thread.")
def test_every_thread_sees_the_flag() -> None:
    """A consumer in a worker thread stops on a signal that the main thread received."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        consumer = threading.Thread(target=wait_for, args=(interrupt,))
        consumer.start()
        send(signal.SIGINT)
        consumer.join(90)
        print(consumer.is_alive())
    """)
        == "False\n"
    )


@pytest.mark.promise("`GracefulInterruptHandler` handles SIGINT, SIGTERM and SIGHUP, or the signals that you pass.")
def test_only_the_chosen_signals_are_owned() -> None:
    """With signals=(SIGUSR1,) the others keep their default, and a list with a duplicate is fine."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler([signal.SIGUSR1, signal.SIGUSR1])
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        print(signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)
        send(signal.SIGUSR1)
        print(interrupt.is_interrupted())
    """)
        == "True\nTrue\nTrue\n"
    )


@pytest.mark.promise("The first signal sets a flag, raises nothing, and is visible in every thread.")
@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="takes many signals, so the real-time ones")
def test_signals_that_interrupt_the_handler_itself_do_not_deadlock() -> None:
    """At every line of the handling of one signal the next arrives; a lock taken there would stay shut."""
    assert (
        run("""
        numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
        interrupt = GracefulInterruptHandler(numbers)
        waiting = iter(numbers)

        def at_every_line(frame, event, arg):
            for number in waiting:
                os.kill(os.getpid(), number)
                break
            return at_every_line

        sys.settrace(at_every_line)
        send(next(waiting))
        sys.settrace(None)
        print(interrupt.is_interrupted())
    """)
        == "True\n"
    )


# The repeated signal


@pytest.mark.promise(
    "A second signal of the same kind has its default effect: `KeyboardInterrupt` for Ctrl-C, termination for the "
    "others."
)
def test_a_second_ctrl_c_raises_keyboard_interrupt() -> None:
    """The first Ctrl+C asks; the second and the third raise."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        send(signal.SIGINT)
        for _ in range(2):
            try:
                send(signal.SIGINT)
                time.sleep(5)
            except KeyboardInterrupt:
                print("KeyboardInterrupt", interrupt.is_interrupted())
    """)
        == "KeyboardInterrupt True\n" * 2
    )


@pytest.mark.promise(
    "A second signal of the same kind has its default effect: `KeyboardInterrupt` for Ctrl-C, termination for the "
    "others."
)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_a_stuck_process(signum: signal.Signals) -> None:
    """A repeated SIGTERM or SIGHUP kills by the default action, as the parent's wait status shows."""
    with program("""
        interrupt = GracefulInterruptHandler()
        print("ready")
        wait_for(interrupt)
        print("stopping")
        time.sleep(15)
    """) as process:
        assert says(process) == "ready"
        process.send_signal(signum)
        assert says(process) == "stopping"
        process.send_signal(signum)
        assert process.wait(timeout=LIMIT_SECONDS) == -signum


@pytest.mark.promise(
    "A second signal of the same kind has its default effect: `KeyboardInterrupt` for Ctrl-C, termination for the "
    "others."
)
def test_a_second_signal_ends_the_process_even_when_the_main_thread_blocks_it() -> None:
    """The default action is aimed at the process, so another thread's open mask lets it in."""
    with program("""
        interrupt = GracefulInterruptHandler()
        threading.Thread(target=time.sleep, args=(15,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        print("ready")
        wait_for(interrupt)
        print("stopping")
        while True:
            time.sleep(0.005)
    """) as process:
        assert says(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert says(process) == "stopping"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_SECONDS) == -signal.SIGTERM


@pytest.mark.promise(
    "A second signal of the same kind has its default effect: `KeyboardInterrupt` for Ctrl-C, termination for the "
    "others."
)
def test_a_different_signal_is_not_a_repetition() -> None:
    """A supervisor's SIGTERM and SIGHUP after a terminal's SIGINT leave the worker to finish."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            send(each)
        print(interrupt.is_interrupted())
    """)
        == "True\n"
    )


# Ownership


@pytest.mark.promise("A signal that another `GracefulInterruptHandler` handles is refused.")
def test_a_second_handler_is_refused_while_the_first_owns_the_signal() -> None:
    """The error names the signal and the way out; the first handler goes on working."""
    output = run("""
        first = GracefulInterruptHandler((signal.SIGTERM,))
        print(refusal((signal.SIGHUP, signal.SIGTERM)))
        print(signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)
        send(signal.SIGTERM)
        print(first.is_interrupted())
    """)
    refusal, *rest = output.splitlines()
    assert "SIGTERM already belongs to another GracefulInterruptHandler" in refusal
    assert "reset()" in refusal
    assert rest == ["True", "True"]


@pytest.mark.promise("A signal that another `GracefulInterruptHandler` handles is refused.")
def test_handlers_of_different_signals_live_side_by_side() -> None:
    """Ownership is per signal: each handler sees its own only."""
    assert (
        run("""
        one, two = GracefulInterruptHandler((signal.SIGTERM,)), GracefulInterruptHandler((signal.SIGHUP,))
        send(signal.SIGHUP)
        print(one.is_interrupted(), two.is_interrupted())
    """)
        == "False True\n"
    )


@pytest.mark.promise(
    "A signal that already has a custom handler is refused with `ValueError`, and no handler is installed."
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_with_a_custom_handler_is_refused_and_nothing_is_installed(name: str) -> None:
    """All or nothing: the foreign handler stays, the other signals keep their default."""
    output = run(f"""
        def foreign(signum, frame):
            print("foreign")
        signal.signal(signal.{name}, foreign)
        before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        print(refusal())
        print(before == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])
        send(signal.{name})
    """)
    refusal, *rest = output.splitlines()
    assert f"signals: {name} already has a handler" in refusal
    assert "foreign" in refusal and "EventDrivenInterruptHandler" in refusal
    assert rest == ["True", "foreign"]


@pytest.mark.promise(
    "A signal that already has a custom handler is refused with `ValueError`, and no handler is installed."
)
def test_an_ignored_signal_that_is_named_is_refused() -> None:
    """The error says to leave it out, and that works."""
    output = run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            GracefulInterruptHandler((signal.SIGTERM, signal.SIGHUP))
        except ValueError as error:
            print(error)
        interrupt = GracefulInterruptHandler((signal.SIGINT, signal.SIGTERM))
        send(signal.SIGHUP)
        print(interrupt.is_interrupted())
    """)
    assert "SIGHUP is ignored" in output and "leave it out" in output
    assert output.endswith("\nFalse\n")


@pytest.mark.promise(
    "`GracefulInterruptHandler()` leaves signals alone that the process ignores, or that have a handler outside Python."
)
def test_signals_of_others_are_left_alone() -> None:
    """Under nohup SIGHUP is ignored on purpose; a library in C may have taken SIGINT."""
    output = run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        known, taken = signal.getsignal, signal.getsignal(signal.SIGINT)
        # What Python says of a handler that was there before the interpreter, in a program that embeds it.
        signal.getsignal = lambda number: None if number == signal.SIGINT else known(number)
        interrupt = GracefulInterruptHandler()
        signal.getsignal = known
        send(signal.SIGHUP)
        print(interrupt.is_interrupted(), known(signal.SIGHUP) == signal.SIG_IGN, known(signal.SIGINT) is taken)
        send(signal.SIGTERM)
        print(interrupt.is_interrupted())
        interrupt.reset()
        print(known(signal.SIGHUP) == signal.SIG_IGN, known(signal.SIGTERM) == signal.SIG_DFL)
    """)
    assert output.split() == ["False", "True", "True", "True", "True", "True"]


@pytest.mark.promise(
    "A signal that already has a custom handler is refused with `ValueError`, and no handler is installed."
)
def test_sigint_at_the_systems_default_may_be_owned() -> None:
    """A process that chose SIG_DFL for SIGINT gets exactly that on the second Ctrl+C."""
    with program("""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        GracefulInterruptHandler()
        send(signal.SIGINT)
        print("asked")
        send(signal.SIGINT)
    """) as process:
        assert says(process) == "asked"
        assert process.wait(timeout=LIMIT_SECONDS) == -signal.SIGINT


@pytest.mark.promise(
    "A signal that already has a custom handler is refused with `ValueError`, and no handler is installed."
)
def test_the_default_ctrl_c_handler_on_another_signal_counts_as_custom() -> None:
    """SIGTERM turned into KeyboardInterrupt is somebody's choice, not Python's default."""
    assert "SIGTERM already has a handler" in run("""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(refusal())
    """)


@pytest.mark.promise(
    "`GracefulInterruptHandler` must be created in the main thread and before `asyncio.run()`; otherwise the error "
    "says so."
)
def test_inside_asyncio_run_the_error_says_to_construct_before() -> None:
    """asyncio.run takes SIGINT for itself; a handler constructed before it is respected and works."""
    output = run("""
        async def too_late():
            print(refusal())
        asyncio.run(too_late())

        async def consumer():
            send(signal.SIGINT)
            while not interrupt.is_interrupted():
                await asyncio.sleep(0.005)
            print("stopped")
        interrupt = GracefulInterruptHandler()
        asyncio.run(consumer())
    """)
    assert "asyncio.run takes SIGINT: construct before it" in output
    assert output.endswith("\nstopped\n")


@pytest.mark.promise(
    "`GracefulInterruptHandler` must be created in the main thread and before `asyncio.run()`; otherwise the error "
    "says so."
)
def test_off_the_main_thread_the_error_says_where_to_construct() -> None:
    """A thread gets a ValueError that names the main thread, and no signal is touched."""
    output = run("""
        thread = threading.Thread(target=lambda: print(refusal()))
        thread.start()
        thread.join()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """)
    assert "must be constructed in the main thread" in output
    assert output.endswith("\nTrue\n")


@pytest.mark.promise(
    "`GracefulInterruptHandler` must be created in the main thread and before `asyncio.run()`; otherwise the error "
    "says so."
)
def test_an_interrupted_construction_installs_nothing(
    user_signals: tuple[signal.Signals, signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl+C between two installations restores the first."""
    first, second = user_signals
    install = signal.signal

    def interrupted(signum: int, handler: object) -> object:
        if signum == second:
            raise KeyboardInterrupt
        return install(signum, handler)  # type: ignore[arg-type]  # passed through as it came

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(signal, "signal", interrupted)
        GracefulInterruptHandler((first, second))
    assert signal.getsignal(first) == signal.getsignal(second) == signal.SIG_DFL


# What `signals` may be


@pytest.mark.promise("Signals that cannot be handled, and objects that are not events, are refused by name.")
def test_signals_of_the_wrong_type_are_named(subtests: pytest.Subtests) -> None:
    """The error names the parameter, and is a TypeError as well as one of the library's own."""
    for signals in [None, signal.SIGTERM, 15, "SIGTERM", b"\x0f", ["SIGTERM"], [None], [True], [15.0], [[15]]]:
        with row(subtests, signals=signals):
            assert issubclass(ConfigurationTypeError, TypeError)
            with pytest.raises(ConfigurationTypeError, match=r"^signals must "):
                GracefulInterruptHandler(signals)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.promise("Signals that cannot be handled, and objects that are not events, are refused by name.")
@pytest.mark.parametrize("signals", [(), [], set(), iter(())])
def test_no_signals_at_all_are_refused(signals: object) -> None:
    """An empty collection would make a handler that never stops anything; the error is a ValueError."""
    assert issubclass(ConfigurationError, ValueError)
    with pytest.raises(ConfigurationError, match=r"^signals must not be empty"):
        GracefulInterruptHandler(signals)  # type: ignore[arg-type]  # as loosely typed as a configuration file


@pytest.mark.promise("Signals that cannot be handled, and objects that are not events, are refused by name.")
@pytest.mark.parametrize(
    ("signum", "name"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "SIGSTOP"), (0, "signal 0"), (999, "signal 999")],
)
def test_a_signal_that_cannot_be_handled_is_named(
    signum: int, name: str, user_signals: tuple[signal.Signals, signal.Signals]
) -> None:
    """SIGKILL, SIGSTOP and numbers out of range are refused, and the good one beside them stays free."""
    with pytest.raises(ConfigurationError, match=f"^signals: {name} cannot be handled"):
        GracefulInterruptHandler((user_signals[0], signum))
    assert signal.getsignal(user_signals[0]) == signal.SIG_DFL


@pytest.mark.promise("`GracefulInterruptHandler` handles SIGINT, SIGTERM and SIGHUP, or the signals that you pass.")
def test_a_platform_without_sighup_does_without_it() -> None:
    """The default signals are those that exist: on Windows SIGINT and SIGTERM."""
    assert (
        run("""
        import importlib, redis_message_queue.process.interrupt as module
        del signal.SIGHUP
        print([each.name for each in importlib.reload(module).DEFAULT_SIGNALS])
    """)
        == "['SIGINT', 'SIGTERM']\n"
    )


# reset()


@pytest.mark.promise(
    "`reset()` restores the signal handlers, can be called repeatedly, and does not restart a stopped loop."
)
def test_reset_restores_the_default_signal_handlers() -> None:
    """After reset, as often as one likes, Ctrl+C raises at once and a fresh handler may be constructed."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        interrupt.reset()
        interrupt.reset()
        print(signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)
        try:
            send(signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            print("KeyboardInterrupt", interrupt.is_interrupted())
        fresh = GracefulInterruptHandler()
        interrupt.reset()
        send(signal.SIGTERM)
        print(interrupt.is_interrupted(), fresh.is_interrupted())
    """)
        == "True\nKeyboardInterrupt False\nFalse True\n"
    )


@pytest.mark.promise(
    "`reset()` restores the signal handlers, can be called repeatedly, and does not restart a stopped loop."
)
def test_reset_does_not_restart_a_stopped_loop() -> None:
    """is_interrupted() stays True after reset; a fresh handler starts False."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        send(signal.SIGTERM)
        interrupt.reset()
        print(interrupt.is_interrupted(), GracefulInterruptHandler().is_interrupted())
    """)
        == "True False\n"
    )


@pytest.mark.promise(
    "`reset()` restores the signal handlers, can be called repeatedly, and does not restart a stopped loop."
)
def test_reset_leaves_a_later_handler_alone() -> None:
    """A handler that somebody installed afterwards stays; the signals that are still ours go back."""
    assert (
        run("""
        interrupt = GracefulInterruptHandler()
        signal.signal(signal.SIGTERM, lambda signum, frame: print("later"))
        interrupt.reset()
        send(signal.SIGTERM)
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, interrupt.is_interrupted())
    """)
        == "later\nTrue False\n"
    )


# Fork


@pytest.mark.promise("A forked child must call `reset()` on the inherited signal handler before it can create its own.")
def test_a_forked_child_cannot_construct_a_handler_beside_the_inherited_one() -> None:
    """The inherited signal table still routes to the parent's handler; the error points to reset()."""
    output = run("""
        parent_handler = GracefulInterruptHandler()
        print(exit_code(fork(lambda: print(refusal()))))
    """)
    assert "another GracefulInterruptHandler" in output and "forked child" in output and "reset()" in output
    assert output.endswith("\n0\n")


@pytest.mark.promise("A forked child must call `reset()` on the inherited signal handler before it can create its own.")
def test_a_forked_child_resets_the_inherited_handler_then_owns_its_signals() -> None:
    """The child stops by its own handler, the parent notices nothing, then the parent by the parent's."""
    assert (
        run("""
        parent_handler = GracefulInterruptHandler()
        ready, tell = os.pipe()

        def worker_main():
            parent_handler.reset()
            interrupt = GracefulInterruptHandler()
            os.write(tell, b".")
            wait_for(interrupt)
            assert not parent_handler.is_interrupted()

        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            child = fork(worker_main)
            os.read(ready, 1)
            os.kill(child, signum)
            print(exit_code(child), parent_handler.is_interrupted())
        send(signal.SIGTERM)
        print(parent_handler.is_interrupted())
    """)
        == "0 False\n" * 3 + "True\n"
    )


@pytest.mark.promise("A forked child must call `reset()` on the inherited signal handler before it can create its own.")
def test_a_forked_child_that_only_resets_dies_of_sigterm_as_usual() -> None:
    """After reset the child has plain defaults."""
    assert (
        run("""
        parent_handler = GracefulInterruptHandler()

        def worker_main():
            parent_handler.reset()
            send(signal.SIGTERM)
            time.sleep(15)

        print(exit_code(fork(worker_main)) == -signal.SIGTERM, parent_handler.is_interrupted())
    """)
        == "True False\n"
    )


@pytest.mark.promise("A forked child must call `reset()` on the inherited signal handler before it can create its own.")
def test_a_signal_before_the_childs_reset_is_not_lost() -> None:
    """It is seen on the inherited handler, also after reset."""
    assert (
        run("""
        parent_handler = GracefulInterruptHandler()

        def worker_main():
            send(signal.SIGTERM)
            parent_handler.reset()
            assert parent_handler.is_interrupted()

        print(exit_code(fork(worker_main)), parent_handler.is_interrupted())
    """)
        == "0 False\n"
    )


@pytest.mark.promise("A signal handler created after the fork belongs to its worker.")
def test_a_handler_constructed_after_fork_is_local_to_the_worker() -> None:
    """With nothing constructed in the parent, children construct theirs and the parent keeps the defaults."""
    assert (
        run("""
        def worker_main():
            interrupt = GracefulInterruptHandler()
            send(signal.SIGTERM)
            wait_for(interrupt)

        print([exit_code(fork(worker_main)) for _ in range(2)])
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """)
        == "[0, 0]\nTrue\n"
    )


@pytest.mark.promise("A forked child must call `reset()` on the inherited signal handler before it can create its own.")
def test_a_fork_from_a_thread_may_reset_and_construct() -> None:
    """The forking thread is the child's main thread."""
    assert (
        run("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork beside threads
        parent_handler = GracefulInterruptHandler()

        def worker_main():
            parent_handler.reset()
            interrupt = GracefulInterruptHandler()
            send(signal.SIGTERM)
            wait_for(interrupt)

        thread = threading.Thread(target=lambda: print(exit_code(fork(worker_main))))
        thread.start()
        thread.join()
    """)
        == "0\n"
    )


# Events


@pytest.mark.promise("`EventDrivenInterruptHandler` follows an event object of yours and installs no signal handlers.")
@pytest.mark.parametrize("make", [threading.Event, asyncio.Event, multiprocessing.Event])
def test_an_event_interrupts_while_it_is_set(make: type[threading.Event]) -> None:
    """The handler has no memory of its own: it says what the event says."""
    event = make()
    interrupt = EventDrivenInterruptHandler(event)
    answers = [interrupt.is_interrupted()]
    event.set()
    answers.append(interrupt.is_interrupted())
    event.clear()
    answers.append(interrupt.is_interrupted())
    assert answers == [False, True, False]


@pytest.mark.promise("`EventDrivenInterruptHandler` follows an event object of yours and installs no signal handlers.")
def test_any_object_with_is_set_will_do() -> None:
    """Whatever is_set() returns, the answer is a bool."""

    class Stop:
        def is_set(self) -> object:
            return "yes"

    assert EventDrivenInterruptHandler(Stop()).is_interrupted() is True  # type: ignore[arg-type]  # loosely typed


class Uncallable:
    is_set = True


class Awaitable:
    async def is_set(self) -> bool:
        return False


@pytest.mark.promise("Signals that cannot be handled, and objects that are not events, are refused by name.")
@pytest.mark.parametrize("event", [None, True, "stop", lambda: True, threading.Event, Uncallable(), Awaitable()])
def test_what_is_not_an_event_is_named(event: object) -> None:
    """The error names the parameter, what was given, and what to pass."""
    with pytest.raises(ConfigurationTypeError, match=r"^event must be .* pass a threading\.Event\(\)") as refusal:
        EventDrivenInterruptHandler(event)  # type: ignore[arg-type]  # wrong on purpose
    assert repr(event) in str(refusal.value)


@pytest.mark.promise("`EventDrivenInterruptHandler` follows an event object of yours and installs no signal handlers.")
def test_an_event_handler_leaves_the_signals_to_their_owner() -> None:
    """Another library owns SIGTERM and sets the event in its hook: the worker stops and exits by itself."""
    assert (
        run("""
        stop = threading.Event()
        hook = lambda signum, frame: stop.set()
        signal.signal(signal.SIGTERM, hook)
        interrupt = EventDrivenInterruptHandler(stop)
        print(signal.getsignal(signal.SIGTERM) is hook)
        send(signal.SIGTERM)
        wait_for(interrupt)
        print("left")
    """)
        == "True\nleft\n"
    )


# A source of one's own


@pytest.mark.promise(
    "`BaseGracefulInterruptHandler` has one abstract method and is the base class of both interrupt handlers."
)
def test_a_custom_source_needs_one_method() -> None:
    """is_interrupted is the only abstract method, and both built-in handlers are subclasses."""

    class Quota(BaseGracefulInterruptHandler):
        def is_interrupted(self) -> bool:
            return True

    assert Quota().is_interrupted()
    assert BaseGracefulInterruptHandler.__abstractmethods__ == {"is_interrupted"}
    assert issubclass(GracefulInterruptHandler, BaseGracefulInterruptHandler)
    assert issubclass(EventDrivenInterruptHandler, BaseGracefulInterruptHandler)
    with pytest.raises(TypeError, match="abstract"):
        BaseGracefulInterruptHandler()  # type: ignore[abstract]  # wrong on purpose
