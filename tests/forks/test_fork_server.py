"""A program that the tests fork does what it does in an interpreter of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.fork_server import Program

# Each writes what it finds; the frames of a traceback are the one thing that may differ.
PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.path[0], sys.warnoptions, sys.orig_argv[1:])",
    "streams": "import sys; print(sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stdin.read())",
    "signals": "import signal; print([(one, signal.getsignal(one)) for one in sorted(signal.valid_signals())])",
    "descriptors": "import os; print(os.listdir('/proc/self/fd'), os.getcwd())",
    "variables": "import os; print(sorted(os.environ.items()))",
    "time zone": "import time; print(time.tzname, time.localtime(0))",
    "a status": "import sys; sys.exit(7)",
    "a text as status": "import sys; sys.exit('no')",
    "an exception": "raise SystemError('no')",
    "Ctrl-C": "raise KeyboardInterrupt",
    "a warning": "import warnings; warnings.warn('no')",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "no flush": "import os, sys; sys.stdout.write('kept back'); sys.stderr.write('no\\n'); os._exit(3)",
    "handlers of the end": "import atexit; atexit.register(print, 'at the end'); print('before')",
    "a thread": "import threading; print('before'); threading.Timer(0.05, print, ['a thread']).start()",
    "a program of its own": (
        "import subprocess, sys\n"
        "program = subprocess.Popen([sys.executable, '-c', 'import sys; sys.exit(len(sys.argv))', 'x'])\n"
        "print(program.wait(), subprocess.run(['echo', 'x'], capture_output=True))"
    ),
    "an open file": "import io, sys; file = open(sys.executable, 'rb'); print('before')",
    "closed output": "import sys; print('before'); sys.stdout.close()",
    "no output": "import sys; print('before'); sys.stdout.flush(); sys.stdout = None",
    "full output": "import sys; sys.stdout = open('/dev/full', 'w'); print('before')",
    "a name": "print(__name__, vars()['__builtins__'])",
}
VARIABLES = {"PYTHONWARNINGS": "error", "TZ": "Asia/Tokyo"}


def outcome(start: Any, command: list[str], directory: Path) -> tuple[int, str, list[str]]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(command, cwd=directory, env=os.environ | VARIABLES, **pipes) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err.splitlines()[-1:]


def test_a_forked_program_is_like_any_other(tmp_path: Path, subtests: pytest.Subtests) -> None:
    script = tmp_path / "program.py"
    for name, code in PROGRAMS.items():
        script.write_text(code)
        as_script = [["-u", str(script), "x"]] if name in ("arguments", "streams", "a thread", "a name") else []
        for command in (["-c", code, "x"], *as_script):
            with subtests.test(name, way=command[0]):
                given = [sys.executable, *command]
                assert fork_server.planned(given, os.environ | VARIABLES)
                assert outcome(Program, given, tmp_path) == outcome(subprocess.Popen, given, tmp_path)


def test_a_module_is_run_as_the_main_program(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys, __main__; print(sys.argv, __main__.__spec__.name, __file__)")
    given = [sys.executable, "-m", "module", "x"]
    assert outcome(Program, given, tmp_path) == outcome(subprocess.Popen, given, tmp_path)


def test_it_can_be_waited_for_and_killed() -> None:
    with Program([sys.executable, "-W", "error", "-c", "input()"], stdin=subprocess.PIPE) as waiting:
        assert waiting.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.01)
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(120) == waiting.poll() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        (["bash", "-c", "true"], {}),
        ([sys.executable, "-c", ""], {}),
        ([sys.executable, "-W", "error", "-i", "-c", ""], {}),
        ([sys.executable, "-W", "error", "-c", ""], {"PYTHONPATH": "elsewhere"}),
        ([sys.executable, "-W", "error", "-c", ""], {"FORCE_COLOR": "1"}),
    ],
)
def test_what_differs_from_its_start_gets_an_interpreter(command: list[str], variables: dict[str, str]) -> None:
    assert fork_server.planned(command, os.environ | variables) is None
