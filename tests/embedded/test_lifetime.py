"""A server runs exactly as long as the process that started it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from redis_message_queue.embedded import EmbeddedRedis, EmbeddedServerError
from tests import fork_server
from tests.conftest import StartServer
from tests.embedded.waiting import answers, falls_silent, until

START = """
import ctypes, os, signal, sys, time
from redis_message_queue.embedded import EmbeddedRedis
server = EmbeddedRedis(binary=sys.argv[1], password=False).start()
print(server.port, server.directory, flush=True)
"""
# The second one does not run Python's fork hooks, as in uWSGI.
FORKS = ["os.fork", "ctypes.PyDLL(None).fork"]


class Program:
    """A Python program that started a server and printed its address."""

    def __init__(self, process: subprocess.Popen[str], out: IO[str]) -> None:
        self.process, self.out = process, out
        port, _, directory = out.readline().strip().partition(" ")
        self.port, self.directory = int(port), Path(directory)


@pytest.fixture
def program(server_setting: str) -> Iterator[Callable[..., Program]]:
    """Runs START and then the given lines, in its own process group."""
    with contextlib.ExitStack() as programs:

        def run(then: str, forked: bool = True) -> Program:
            process = programs.enter_context(
                (fork_server.Program if forked else subprocess.Popen)(
                    [sys.executable, "-W", "error", "-c", START + then, server_setting],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            programs.callback(process.kill)
            assert process.stdout is not None
            return Program(process, process.stdout)

        yield run


def test_a_server_ends_when_its_program_is_killed(program: Callable[..., Program]) -> None:
    killed = program("time.sleep(60)", forked=False)
    assert answers(killed.port)
    killed.process.kill()
    assert falls_silent(killed.port)
    assert until(lambda: not killed.directory.exists())


def test_a_directory_that_is_kept_stays_when_the_program_is_killed(
    program: Callable[[str], Program], tmp_path: Path
) -> None:
    killed = program(f"EmbeddedRedis(binary=sys.argv[1], directory={str(tmp_path)!r}).start(); time.sleep(60)")
    assert until(lambda: (tmp_path / "server.log").exists())
    killed.process.kill()
    assert until(lambda: not killed.directory.exists())
    assert (tmp_path / "server.log").exists()


def test_a_paused_server_ends_when_its_program_is_killed(program: Callable[[str], Program]) -> None:
    killed = program("server.pause(); print('paused', flush=True); time.sleep(60)")
    killed.out.readline()
    killed.process.kill()
    assert falls_silent(killed.port)


def test_a_server_ends_when_its_program_is_killed_although_a_forked_child_runs(
    program: Callable[[str], Program],
) -> None:
    """The child inherits the parent's end of the pipe, and must close it."""
    killed = program("""
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
os.waitpid(child, 0)
""")
    child = int(killed.out.readline())
    try:
        killed.process.kill()
        assert falls_silent(killed.port)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_program_that_forgets_to_stop_its_server_stops_it_at_its_exit(program: Callable[[str], Program]) -> None:
    forgetful = program("")
    assert forgetful.process.wait(60) == 0
    assert not answers(forgetful.port)
    assert not forgetful.directory.exists()


@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "server.stop()"])
def test_a_forked_child_that_ends_leaves_the_server_to_its_parent(
    program: Callable[[str], Program], leave: str, fork: str
) -> None:
    parent = program(f"""
child = {fork}()
if child == 0:
    with server.client() as client:
        client.set("from", "child")
    {leave}
    sys.exit(0)
os.waitpid(child, 0)
with server.client() as client:
    print(client.get("from"), flush=True)
sys.stdin.readline()
""")
    assert parent.out.readline().strip() == "b'child'"
    assert answers(parent.port)
    assert parent.directory.is_dir()


@pytest.mark.parametrize("fork", FORKS)
def test_a_forked_child_cannot_kill_the_server_of_its_parent(program: Callable[[str], Program], fork: str) -> None:
    parent = program(f"""
if {fork}() == 0:
    try:
        server.kill()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
sys.stdin.readline()
""")
    assert parent.out.readline().startswith("the embedded server belongs to another process;")
    assert answers(parent.port)


def test_ctrl_c_at_the_terminal_reaches_the_program_and_not_its_server(program: Callable[[str], Program]) -> None:
    """The terminal signals the whole foreground group, but the program may need the server to drain."""
    interrupted = program("""
try:
    print("waiting", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)  # a server that got the signal would exit within 100 ms
    with server.client() as client:
        print(client.ping(), flush=True)
""")
    interrupted.out.readline()
    os.killpg(interrupted.process.pid, signal.SIGINT)
    assert interrupted.out.readline().strip() == "True"


def test_a_server_outlives_the_thread_that_started_it(start_server: StartServer) -> None:
    """PR_SET_PDEATHSIG would have killed it with that thread."""
    servers: list[EmbeddedRedis] = []
    thread = threading.Thread(target=lambda: servers.append(start_server()))
    thread.start()
    thread.join()
    assert not falls_silent(servers[0].port, within_seconds=0.5)
    assert servers[0].running


def test_a_server_that_nobody_refers_to_runs_on(program: Callable[[str], Program]) -> None:
    """Clients may still use it. The exit of the program ends it."""
    careless = program("""
import gc
pid = server.pid
client = server.client()
del server
gc.collect()
time.sleep(0.2)
print(client.info("server")["process_id"] == pid, flush=True)
client.close()
""")
    assert careless.out.readline().strip() == "True"
    assert careless.process.wait(60) == 0
    assert not careless.directory.exists()


def test_a_server_that_died_by_itself_is_noticed_and_can_be_restarted(start_server: StartServer) -> None:
    server = start_server()
    os.kill(server.pid, signal.SIGKILL)
    assert falls_silent(server.port)
    server.restart()
    assert answers(server.port)


def test_a_server_never_started_cannot_be_killed() -> None:
    with pytest.raises(EmbeddedServerError, match="not running"):
        EmbeddedRedis().kill()
