"""Starts Python programs by forking a process that has imported the library, because that takes half a second."""

import atexit
import builtins
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

# What most programs of the tests import. None of it starts a thread.
_IMPORTED = (
    *("pytest", "redis.asyncio", "redis_message_queue.asyncio", "typer.rich_utils", "rich.table", "rich.live"),
    *("redis_message_queue.cli.program", "redis_message_queue.cli.worker.worker", "redis_message_queue.cli.consume"),
    *("redis_message_queue.cli.dashboard", "redis_message_queue.dashboard", "uvicorn"),
    *("redis_message_queue.cli.stats", "redis_message_queue.cli.publish", "redis_message_queue.cli.doctor.doctor"),
    # Typer imports these when it reads the first option, which takes as long as all else that a short command does.
    *("pydantic.types", "pydantic.type_adapter", "encodings.idna"),
)
# Python and the libraries read these when they are imported: a program with another value gets an interpreter.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TERMINAL_WIDTH", "TYPER", "_TYPER")
_OBEYED = ("PYTHONWARNINGS", "PYTHONUNBUFFERED")
_ENVIRONMENT = dict(os.environ)
# Whether these are ignored, a program has from whoever starts it.
_INHERITED: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}
_HIGH = 500  # above the descriptors that a program is given
_Interpreter = subprocess.Popen  # a test or a program may have put `Program` in its place


def take_the_terminal() -> None:
    """As `preexec_fn`: only the terminal that a session belongs to turns Ctrl-C into a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Program(subprocess.Popen[Any]):
    """A process as from `subprocess.Popen`; it is forked if it is a Python program that treats warnings as errors.

    What it starts itself is forked, too. Its parent is not this process but a guardian, which waits for it.
    """

    server_at: bytes | None = None
    _guardian: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        close_fds, pass_fds, cwd, env, _, _, shell, *pipes = others[:13]
        _, gid, gids, uid, umask, session, group = others[13:]
        variables = dict(os.environ if env is None else env)
        plan = planned(args, variables)
        usual = not executable and not shell and close_fds and (gid, gids, uid, umask) == (None, None, None, -1)
        if plan is None or not usual or preexec_fn not in (None, take_the_terminal):
            super()._execute_child(args, executable, preexec_fn, *others)  # type: ignore[misc]
            return
        plan |= {"variables": variables, "directory": os.path.abspath(os.fspath(cwd or "."))}
        plan |= {"session": session, "group": group, "terminal": preexec_fn is not None, "passed": list(pass_fds)}
        standard = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._guardian = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._guardian.connect(Program.server_at or start_server())
        socket.send_fds(self._guardian, [json.dumps(plan).encode()], [*standard, *pass_fds])
        self.pid = int(self._guardian.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._guardian is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        try:
            status = self._guardian.recv(32, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        with self._guardian:
            self._guardian.send(b"!")
        return self.pid, int(status)

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._guardian is None:
            return super()._internal_poll(*arguments, **options)  # type: ignore[misc]
        if self.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._wait(timeout=0)  # type: ignore[attr-defined]
        return self.returncode


def run(command: Sequence[str], *, timeout: float = 120, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end and keep its output, as `subprocess.run` does."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Program(command, **pipes | options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def planned(command: Any, variables: Mapping[str, str]) -> dict[str, Any] | None:
    """What a new process has to run, or None if only an interpreter of its own can do that."""
    words = [os.fspath(word) for word in command] if isinstance(command, list | tuple) else [""]
    environment_differs = _read_at_start(variables) != _read_at_start(_ENVIRONMENT)
    if sys.platform != "linux" or words[0] != sys.executable or environment_differs:
        return None
    options = words[1:]
    warnings, unbuffered = variables.get("PYTHONWARNINGS"), bool(variables.get("PYTHONUNBUFFERED"))
    while options[:1] == ["-u"] or options[:2] == ["-W", "error"]:
        if options.pop(0) == "-W":
            warnings = options.pop(0)
        else:
            unbuffered = True
    kind = options.pop(0) if options[:1] in (["-m"], ["-c"]) else "script"
    if warnings != "error" or not options or (kind == "script" and options[0].startswith("-")):
        return None
    ignored = [int(number) for number in _INHERITED if signal.getsignal(number) is signal.SIG_IGN]
    return {"kind": kind, "words": options, "unbuffered": unbuffered, "command": words, "ignored": ignored}


# Python without its libraries starts in a hundredth of a second. The program has the streams for itself: whoever reads
# from it sees its end, and whoever writes to it sees that nobody reads.
_STARTER = """#!{python} -IS
import json, os, socket, sys
plan = {plan!r}
plan["words"] += sys.argv[1:]
plan["command"] += sys.argv[1:]
plan |= {{"variables": dict(os.environ), "directory": os.getcwd()}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guardian:
    guardian.connect({address!r})
    socket.send_fds(guardian, [json.dumps(plan).encode()], [0, 1, 2])
    guardian.recv(32)
    for stream in range(3):
        os.close(stream)
    status = int(guardian.recv(32))
    guardian.send(b"!")
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""


def write_starter(path: Path, module: str) -> None:
    """Write a program for a shell, which forks `python -W error -m module`. It needs all of its standard streams."""
    plan = planned([sys.executable, "-W", "error", "-m", module], os.environ)
    assert plan is not None, "this environment needs an interpreter"
    plan |= {"session": False, "group": None, "terminal": False, "passed": []}
    path.write_text(_STARTER.format(python=sys.executable, plan=plan, address=Program.server_at or start_server()))
    path.chmod(0o755)


def _read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: variables[name] for name in variables if name.startswith(_READ_AT_START) and name not in _OBEYED}


def start_server() -> bytes:
    """Start the process that forks, and return its address. It ends with this one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # Linux chooses a name, which is no file
        listener.listen(64)
        process = _Interpreter(
            [sys.executable, "-W", "error", "-c", f"import {__name__} as it; it.serve({listener.fileno()})()"],
            cwd=Path(__file__).parents[1],
            env=_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
        atexit.register(process.communicate)
        Program.server_at = listener.getsockname()
    return Program.server_at


def serve(listening: int) -> Callable[[], object]:
    """Fork for each request until stdin ends. Returns in each new process, with what that has to call."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=listening) as listener:
        Program.server_at = listener.getsockname()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            request, files, _, _ = socket.recv_fds(connection, 1 << 20, 64)
            if os.fork() == 0:
                listener.close()
                if process := os.fork():
                    _guard(process, connection, files)
                connection.close()
                return _become(json.loads(request), files)
            connection.close()
            for file in files:
                os.close(file)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
    return lambda: None


def _guard(process: int, connection: socket.socket, files: Sequence[int]) -> NoReturn:
    """Tell how a process ended. Until whoever started it has heard that, its number is not used again."""
    for file in files:
        os.close(file)
    connection.send(str(process).encode())
    ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    with contextlib.suppress(OSError):  # nobody waits for it any more
        connection.send(str(ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status).encode())
        connection.recv(1)
    os.waitpid(process, 0)
    os._exit(0)


def _become(plan: dict[str, Any], files: Sequence[int]) -> Callable[[], object]:
    """Make this process what a new interpreter would be before its program begins."""
    if plan["session"]:
        os.setsid()
    if plan["group"] not in (None, -1):
        os.setpgid(0, plan["group"])
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, [0, 1, 2, *plan["passed"]], strict=True):
        os.dup2(file, number)
        os.close(file)
    if plan["terminal"]:
        take_the_terminal()
    for number, usual in _INHERITED.items():
        signal.signal(number, signal.SIG_IGN if number in plan["ignored"] else usual)
    os.chdir(plan["directory"])
    os.environ.clear()
    os.environ.update(plan["variables"])
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = (
        _stream(number, stream, plan["unbuffered"]) for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc,assignment]
    subprocess.Popen = Program  # type: ignore[misc]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    return _main(plan["kind"], plan["words"], plan["command"])


def _stream(number: int, old: TextIO, unbuffered: bool) -> TextIO:
    """A standard stream, as Python opens it at its start."""
    reads, unbuffered = number == 0, unbuffered and number > 0
    raw = open(number, "rb" if reads else "wb", buffering=0, closefd=False)  # noqa: SIM115  open as long as the process
    raw.name = old.name
    binary: Any = raw if unbuffered else io.BufferedReader(raw) if reads else io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        binary,
        encoding=old.encoding,
        errors=old.errors,
        newline=None if reads else "\n",
        line_buffering=number == 2 or raw.isatty(),
        write_through=unbuffered,
    )
    stream.mode = "r" if reads else "w"  # type: ignore[misc]
    return stream


def _main(kind: str, words: list[str], command: list[str]) -> Callable[[], object]:
    """The program itself. It ends as in an interpreter of its own, with its handlers, its status and its traceback."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.argv, sys.orig_argv = [kind, *words[1:]], command
    if kind == "-m":
        sys.path[0] = os.getcwd()
        if not hasattr(sys.modules.get(words[0]), "__path__"):
            sys.modules.pop(words[0], None)
        return lambda: _end_after(lambda: runpy._run_module_as_main(words[0]), main)  # type: ignore[attr-defined]
    if kind == "-c":
        sys.path[0], code = "", compile(words[0], "<string>", "exec")
    else:
        main.__file__ = sys.argv[0] = words[0]
        sys.path[0], code = str(Path(words[0]).resolve().parent), compile(Path(words[0]).read_bytes(), words[0], "exec")
    return lambda: _end_after(lambda: exec(code, vars(main)), main)


def _end_after(program: Callable[[], object], main: types.ModuleType) -> None:
    """Run a program and end its process, without taking apart what was imported: that takes longer than most programs.

    Any end but an ordinary one is left to the interpreter.
    """
    status: Any = None
    try:
        program()
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    vars(main).clear()  # so that whatever the program forgot to close is reported
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or None: the interpreter reports it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((status or 0) & 0xFF)
    sys.exit(status)
