"""A plugin of pytest that collects the tests once, and divides them among processes that it forks.

Processes of pytest-xdist collect everything each by itself, which takes each of them up to 18 seconds.
"""

import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

from tests import fork_server

SPARK = "tests/spark/"
NICE = 5
# Where single files take longest: they begin first, so that no process is left with one of them at the end.
LONGEST = (SPARK, "tests/docs/", "tests/cli/", "tests/simulator/", "tests/faults/", "tests/topologies/", "tests/forks/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, metavar="N", help="run the tests in so many forked processes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, one in enumerate(LONGEST) if item.nodeid.startswith(one)), len(LONGEST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the process with the Spark session go first: its tests take longest, one after the other."""
    if not item.nodeid.startswith(SPARK) and os.getpriority(os.PRIO_PROCESS, 0) < NICE:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number = session.config.getoption("--processes")
    if number < 1 or session.testsfailed or session.config.option.collectonly:
        return None
    with warnings.catch_warnings():
        # Python warns of threads. Here they belong to libraries that know forks: jemalloc, and OpenBLAS of numpy.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        Pool(session).run(number)
    return True


def units(items: Sequence[pytest.Item]) -> Iterable[list[int]]:
    """The places of the tests that one process runs: those of one file, or all with Spark beside others.

    A JVM keeps a core busy, so only one process starts one, unless nothing else is to be done.
    """
    has_others = any(not item.nodeid.startswith(SPARK) for item in items)
    by_file: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        file = item.nodeid.partition("::")[0]
        by_file.setdefault(SPARK if has_others and file.startswith(SPARK) else file, []).append(place)
    return by_file.values()


class Pool:
    """Gives the tests to the processes, and reports what came of them."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        self._left = deque(units(session.items))
        self._workers: dict[Connection, Worker] = {}

    def run(self, number: int) -> None:
        fork_server.start_server()  # one for all of them
        # Each process captures into files of its own.
        capture: Any = self._session.config.pluginmanager.get_plugin("capturemanager")
        capture.stop_global_capturing()
        try:
            for _ in range(min(number, len(self._left))):
                self._start()
            while self._workers:
                for pipe in wait(list(self._workers)):
                    assert isinstance(pipe, Connection)
                    self._hear(self._workers[pipe])
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for one in (ours, *self._workers):
                one.close()
            work(self._session, theirs)
        theirs.close()
        self._workers[ours] = Worker(pid, ours)

    def _hear(self, worker: "Worker") -> None:
        try:
            kind, *content = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._end(worker)
            return
        if kind == "more":
            places = self._left.popleft() if self._left and not self._is_over else []
            worker.todo += places
            worker.pipe.send(places)
        elif kind == "begins":
            worker.running = worker.todo.pop(0)
            item = self._session.items[worker.running]
            self._hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == "ended":
            assert worker.running is not None
            item, worker.running = self._session.items[worker.running], None
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        else:
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=content[0])
            self._hook.pytest_runtest_logreport(report=report)
            if self._is_over:
                for one in self._workers.values():
                    one.stop()

    @property
    def _is_over(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _end(self, worker: "Worker") -> None:
        """A process has ended: after its last test, or in the middle of one, which has failed then."""
        del self._workers[worker.pipe]
        _, status = os.waitpid(worker.pid, 0)
        if worker.running is not None:
            item = self._session.items[worker.running]
            text = f"the process of this test has ended with status {os.waitstatus_to_exitcode(status)}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._hook.pytest_runtest_logreport(report=report)
            self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif status:
            raise RuntimeError(f"a process of the pool has ended with {os.waitstatus_to_exitcode(status)}")
        if worker.todo:
            self._left.appendleft(worker.todo)
        if worker.running is not None and self._left and not self._is_over:
            self._start()


class Worker:
    """A process as the pool knows it."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self.pid = pid
        self.pipe = pipe
        self.todo: list[int] = []  # the places of the tests that it was given and has not begun
        self.running: int | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Have it begin no other test."""
        if not self._is_stopped:
            self._is_stopped = True
            self.pipe.send([])


def work(session: pytest.Session, pipe: Connection) -> None:
    """Run tests until there are no more; never returns."""
    status = 1
    try:
        config = session.config
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the pool reports
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.register(Reports(config, pipe))
        todo: deque[int] = deque(more(pipe))
        while todo:
            if len(todo) == 1:  # what comes next decides which fixtures are kept
                todo += more(pipe)
            item = session.items[todo.popleft()]
            pipe.send(("begins",))
            config.hook.pytest_runtest_protocol(item=item, nextitem=session.items[todo[0]] if todo else None)
            pipe.send(("ended",))
            if pipe.poll():
                break
        session._setupstate.teardown_exact(None)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def more(pipe: Connection) -> list[int]:
    pipe.send(("more",))
    places: list[int] = pipe.recv()
    return places


class Reports:
    """Sends the reports of a process to the pool."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("report", data))
