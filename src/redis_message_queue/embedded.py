"""A private, real Redis or Valkey server that lives as long as the program that started it.

with EmbeddedRedis() as server:
    client = server.client()
"""

import atexit
import contextlib
import fcntl
import os
import random
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self, TypeVar
from urllib.parse import quote

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, EmbeddedServerError
from redis_message_queue.identity import after_fork, process
from redis_message_queue.server_binary import SETTING, ServerBinary, find_server

__all__ = ["EmbeddedRedis", "EmbeddedServerError", "ServerBinary", "find_server"]

T = TypeVar("T")

# Below 32768, where Linux begins to hand out ports to outgoing connections: a client that keeps knocking
# while its server restarts could otherwise be given that very port, and connect to itself. The cluster bus,
# 10,000 ports higher, stays below too.
_PORTS = range(11_000, 22_000)
# With a thousand of the 11,000 ports taken, ten tries in a row fail once in 10^10 starts.
_PORT_TRIES = 10
# How long one PING may take: a stranger on the port may accept it and never answer.
_KNOCK_SECONDS = 0.5
_PORT_TAKEN = "Address already in use"

# Beside the data that it guards, so that a kept directory keeps its URL.
_PASSWORD_FILE = "server.password"
_OWN_FILES = ("server.*", "*.rdb", "*.aof", "appendonly*", "appendonlydir/*", "nodes.conf")
# Settings that hold or may hold a secret: an error that shows the server's log does not show them.
_SECRET_SETTINGS = ("pass", "auth", "user")

# Held by this module: another value would put the server out of its reach, or out of its directory.
_OWN_SETTINGS = frozenset({"bind", "port", "dir", "logfile", "daemonize", "supervised", "include"})

# The shell becomes the server, so that its process id is the server's, and leaves a watcher behind that reads
# a pipe whose other end only we hold: however we die, the read ends and the watcher kills its own group.
# Why not PR_SET_PDEATHSIG: only Linux has it, and it fires when the *thread* that started the server ends.
# Why the group: it outlives the server for as long as the watcher is in it, so its number, which is $$ too,
# cannot pass to a stranger, and the children that the server forks to write files go with it.
# A line through the pipe means that we are well and keep, or remove, the directory ourselves.
# The umask: what the server writes is for its owner alone.
_LAUNCH = """
umask 077
exec 3<&0 0</dev/null
temporary_directory=$1; shift
(read -r line <&3 || { kill -9 $$; /bin/rm -rf -- "$temporary_directory"; }; kill -9 0) >/dev/null 2>&1 &
exec "$@" 3<&-
"""


class _PortTaken(EmbeddedServerError):
    """Somebody else listens on the port; another one may do."""


class EmbeddedRedis:
    """A server on a free loopback port, in a directory of its own, ended with the program that started it.

    With `directory` the files stay there after `stop()`, and `append_only=True` writes every change to them;
    without it they live in a temporary directory. `config` takes further settings, as redis.conf has them.

    The server asks for a password. By default it is a random one: `url`, `client()` and `async_client()` have it, and
    no other user of the machine can read it. `password` takes one of your own, or False for a server without one. All
    files are readable by their owner only.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        *,
        binary: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        port: int = 0,
        append_only: bool = False,
        password: str | bool = True,
        config: Mapping[str, str | int] | None = None,
        startup_timeout_seconds: float = 10.0,
        shutdown_timeout_seconds: float = 10.0,
    ) -> None:
        self._setting = binary
        self._kept_directory = None if directory is None else Path(directory).absolute()
        if not 0 <= port <= 65_535:
            raise ConfigurationError(f"port is {port}. Give one from 1 to 65535, or 0 for any free one.")
        self._wanted_port = port
        self._append_only = append_only
        self._config = _checked(config or {})
        self._password = _checked_password(password, self._config)
        self._startup_timeout = startup_timeout_seconds
        self._shutdown_timeout = shutdown_timeout_seconds
        self._binary: ServerBinary | None = None
        self._directory: Path | None = None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self._shown_url if self.running else "not running"
        return f"<EmbeddedRedis {state}>"

    # What it is

    @property
    def running(self) -> bool:
        """Whether the server runs (or is paused) and belongs to this process."""
        process()  # which disowns it in a forked child
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        return self._known(self._port)

    @property
    def directory(self) -> Path:
        """Where the server keeps its files and its log, `server.log`."""
        return self._known(self._directory)

    @property
    def url(self) -> str:
        """Where a client finds the server, with its password."""
        return self._url(quote(self._password or "", safe=""))

    @property
    def pid(self) -> int:
        return self._known(self._process).pid

    @property
    def binary(self) -> str:
        return self._known(self._binary).path

    @property
    def flavour(self) -> Literal["redis", "valkey"]:
        return self._known(self._binary).flavour

    @property
    def version(self) -> tuple[int, int, int]:
        return self._known(self._binary).version

    def client(self, **options: Any) -> redis.Redis:
        """A client of this server; the caller closes it."""
        return redis.Redis(**self._address | options)

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        """An asyncio client of this server; the caller closes it."""
        return redis.asyncio.Redis(**self._address | options)

    # What can be done with it

    def start(self) -> Self:
        """Start the server and wait until it answers."""
        if self._process is not None:
            raise EmbeddedServerError(f"The embedded server was started already ({self._shown_url}). Use restart().")
        self._binary = find_server(self._setting)
        self._directory = self._make_directory()
        _started.add(self)
        try:
            self._choose_password()
            self._start_on_a_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server; a temporary directory goes with it. In a forked child this does nothing."""
        process()  # which disowns it in a forked child
        if self not in _started:
            return
        # Nobody will read what a server in a temporary directory would save: killing it spares up to 100 ms.
        self._end(patience=self._shutdown_timeout if self._kept_directory else 0)
        if self._directory is not None and self._kept_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._process = None
        _started.discard(self)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; `restart()` brings it back."""
        self._require_ours()
        self._end(patience=0)

    def restart(self) -> None:
        """End the server, if it still runs, and start it on the same port in the same directory."""
        self._require_ours()
        self._end(patience=self._shutdown_timeout)
        self._launch(self.port)

    def pause(self) -> None:
        """Stop the server in its tracks (SIGSTOP): connections stay open and nothing is answered."""
        server = self._require_ours()
        server.send_signal(signal.SIGSTOP)
        _wait_until_stopped(server.pid)

    def resume(self) -> None:
        """Let a paused server run on."""
        self._require_ours().send_signal(signal.SIGCONT)

    # How it is done

    @property
    def _shown_url(self) -> str:
        """For errors and logs."""
        return self._url("***" if self._password else "")

    def _url(self, password: str) -> str:
        return f"redis://{f':{password}@' if password else ''}{self.host}:{self.port}/0"

    @property
    def _address(self) -> dict[str, Any]:
        return {"host": self.host, "port": self.port, "password": self._password or None}

    def _known(self, value: T | None) -> T:
        if value is None:
            raise EmbeddedServerError("The embedded server is not running. Call start() or use it in a `with`.")
        return value

    def _require_ours(self) -> "subprocess.Popen[bytes]":
        process()  # which disowns it in a forked child
        started = self._known(self._process)
        if self not in _started:
            raise EmbeddedServerError(
                "The embedded server belongs to another process. Call this in the one that started it."
            )
        return started

    def _make_directory(self) -> Path:
        if self._kept_directory is None:
            return Path(tempfile.mkdtemp(prefix="redis-message-queue-"))
        self._kept_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._kept_directory

    def _choose_password(self) -> None:
        """A random one is kept with a kept directory, and the URL stays as it was."""
        if self._password is not None:
            return
        path = self.directory / _PASSWORD_FILE
        if self._kept_directory is not None:
            with contextlib.suppress(FileNotFoundError):
                self._password = path.read_text(encoding="ascii", errors="ignore").strip()
        if not self._password:
            self._password = secrets.token_urlsafe(24)
            if self._kept_directory is not None:
                _write_private(path, f"{self._password}\n")

    def _start_on_a_port(self) -> None:
        """The server itself tries a port: one that we had found free could be taken a moment later."""
        if self._wanted_port:
            return self._launch(self._wanted_port)
        for port in _some_ports():
            with contextlib.suppress(_PortTaken):
                return self._launch(port)
        raise EmbeddedServerError(f"{_PORT_TRIES} ports in a row were taken. Give a free one: port=...")

    def _launch(self, port: int) -> None:
        self._port = port
        _write_private(self.directory / "server.conf", self._settings())
        _make_private(self.directory)
        with open(self.directory / "server.log", "ab", opener=_private) as log:
            _lock(log, self.directory)
            log_start = log.tell()
            self._process = self._spawn(log)
        try:
            self._wait_until_ready(self._process, log_start)
        except BaseException:
            self._end(patience=0)
            raise

    def _settings(self) -> str:
        """The text of server.conf."""
        settings: dict[str, str | int] = {
            "bind": self.host,
            "port": self.port,
            "protected-mode": "yes",
            "daemonize": "no",
            "dir": ".",
            "loglevel": "notice",
            "logfile": "",
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
        }
        if self._password:
            settings["requirepass"] = _quoted(self._password)
            settings["masterauth"] = _quoted(self._password)  # for a replica with the same password
        given = {name: value for name, value in self._config.items() if name != "requirepass"}
        lines = [f"{name} {value if value != '' else chr(34) * 2}" for name, value in (settings | given).items()]
        return "\n".join([*lines, ""])

    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """A session of its own: a Ctrl-C at the terminal reaches the program, not its server."""
        temporary_directory = "" if self._kept_directory else str(self.directory)
        reading_end, self._lifeline = os.pipe()
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "sh", temporary_directory, self.binary, "server.conf"],
                stdin=reading_end,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        finally:
            os.close(reading_end)

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]", log_start: int) -> None:
        deadline = time.monotonic() + self._startup_timeout
        with self.client(retry=Retry(NoBackoff(), 0), socket_timeout=_KNOCK_SECONDS) as client:
            while not _answers(client, process.pid):
                if process.poll() is not None:
                    raise self._died(process.returncode, log_start)
                if time.monotonic() > deadline:
                    raise self._failed(f"did not answer within {self._startup_timeout:g} seconds", log_start)
                time.sleep(0.005)

    def _died(self, status: int, log_start: int) -> EmbeddedServerError:
        failure = self._failed(f"ended at its start with status {status}", log_start)
        return _PortTaken(str(failure)) if _PORT_TAKEN in str(failure) else failure

    def _failed(self, what: str, log_start: int) -> EmbeddedServerError:
        log = (self.directory / "server.log").read_bytes()[log_start:].decode(errors="replace")
        for secret in self._secrets():
            log = log.replace(secret, "***")
        tail = "\n".join(f"    {line}" for line in log.splitlines()[-12:])
        return EmbeddedServerError(
            f"{self._binary} {what}. The end of its log:\n{tail}\n"
            f"Mend what the log names, or choose another server: binary=... or {SETTING}."
        )

    def _secrets(self) -> list[str]:
        """What no error may show: the server repeats a line of its settings that it does not understand."""
        found = [str(value) for name, value in self._config.items() if any(word in name for word in _SECRET_SETTINGS)]
        if self._password:
            found += [self._password, _quoted(self._password)[1:-1]]
        return sorted(filter(None, found), key=len, reverse=True)

    def _end(self, patience: float) -> None:
        """Ask for so many seconds, then kill; the watcher ends what is left of the group."""
        if self._process is not None:
            _ask_to_leave(self._process, patience)
            self._process.kill()
            self._process.wait()
        if self._lifeline is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._lifeline, b"\n")
            self._drop_lifeline()

    def _disown(self) -> None:
        """In a forked child: the parent's server is not this process's to end, nor to keep alive."""
        self._drop_lifeline()
        if self._process is not None:
            self._process.returncode = 0

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _checked(config: Mapping[str, str | int]) -> dict[str, str | int]:
    config = {name.lower(): value for name, value in config.items()}
    if taken := _OWN_SETTINGS & config.keys():
        raise ConfigurationError(
            f"EmbeddedRedis sets {', '.join(sorted(taken))} itself. Use its own arguments instead."
        )
    if broken := [name for name, value in config.items() if "\n" in f"{name}{value}"]:
        raise ConfigurationError(f"A setting is one line, without line breaks. Mend: {broken}")
    return config


def _checked_password(password: str | bool, config: Mapping[str, str | int]) -> str | None:
    """The password, "" for a server without one, or None if one is to be made."""
    if not isinstance(password, str | bool):
        raise ConfigurationTypeError(f"password must be a text or a bool, not {type(password).__name__}")
    if "requirepass" in config:
        if password is not True:
            raise ConfigurationError("Give the password once: as password=... or as requirepass in config.")
        return str(config["requirepass"])
    if password == "":
        raise ConfigurationError("password is empty. Give one, or False for a server without a password.")
    if isinstance(password, str) and not password.isprintable():
        raise ConfigurationError("password has characters that cannot be printed. Give one without.")
    return password if isinstance(password, str) else None if password else ""


def _quoted(text: str) -> str:
    """As one word of redis.conf."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_private(path: Path, text: str) -> None:
    """A new file, readable by its owner only from its first moment."""
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)


def _make_private(directory: Path) -> None:
    """What an earlier server has left in a kept directory."""
    for pattern in _OWN_FILES:
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):  # somebody else's, or gone by now
                if not path.is_symlink():
                    path.chmod(0o700 if path.is_dir() else 0o600)


def _some_ports() -> list[int]:
    """Not from the shared generator: programs that seed it alike would all try the same ports."""
    return random.SystemRandom().sample(_PORTS, _PORT_TRIES)


def _lock(log: IO[bytes], directory: Path) -> None:
    """Two servers in one directory would spoil each other's files.

    The server inherits the open log, and with it the lock, which therefore ends with the server.
    """
    # A second is for what a killed server leaves: its children need a moment to die.
    deadline = time.monotonic() + 1.0
    while True:
        try:
            return fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Another server runs in {directory}. Stop it, or give this one a directory of its own."
                ) from error
            time.sleep(0.01)


def _answers(client: redis.Redis, pid: int) -> bool:
    """Whether the server on the port is ready, and ours: a stranger may have been faster on that port."""
    try:
        return bool(client.ping()) and int(client.info("server")["process_id"]) == pid
    except redis.RedisError:
        return False


def _ask_to_leave(process: "subprocess.Popen[bytes]", patience: float) -> None:
    """SIGTERM once a second: a server that is writing its first append-only file forgets the first one."""
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0 and process.poll() is None:
        process.terminate()
        # A paused server hears of it only when it runs again.
        process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(1.0, left))


def _wait_until_stopped(pid: int) -> None:
    """The signal is on its way when kill(2) returns: without the wait one more command may be served."""
    # Bounded: of a process that was stopped before there is no news.
    deadline = time.monotonic() + 1.0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WUNTRACED | os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.001)


_started: set[EmbeddedRedis] = set()


def _stop_all() -> None:
    for server in tuple(_started):
        server.stop()


def _disown_all(_: float) -> None:
    for server in _started:
        server._disown()
    _started.clear()


atexit.register(_stop_all)
# A forked child inherits our end of every pipe; did it keep them, the servers would live until it ends too.
after_fork(_disown_all)
