"""A proxy on loopback between clients and their server that does, when told to, what networks do.

with FaultyProxy(server.port) as proxy:
    proxy.meet("publish", CUT_AFTER)  # the first publish is executed, and its answer is lost
    client = redis.Redis(port=proxy.port)
"""

import contextlib
import functools
import hashlib
import select
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from redis_message_queue import scripts

# How long a straggler's answer may take before the test is told that there is none.
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Fault:
    """What happens to one request, and after how long."""

    name: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return self.name

    def like(self, other: "Fault") -> bool:
        """The same, however long it takes."""
        return self.name == other.name


PASS = Fault("pass")
CUT_BEFORE = Fault("cut before")  # the request never reaches the server
CUT_AFTER = Fault("cut after")  # the server has executed it, and the answer is lost
STRAGGLE = Fault("straggle")  # the client is cut off; the request is kept for `let_stragglers_through`
BLACK_HOLE = Fault("black hole")  # nothing comes back, and the connection stays open


def delayed(seconds: float, fault: Fault = PASS) -> Fault:
    """The server executes a request at once, if at all, and what happens then takes so long."""
    return replace(fault, seconds=seconds)


class FaultyProxy:
    """Passes everything on, except for the requests that it was told to meet with a fault.

    A request goes by its command, in capitals, and a script also by its name: a publish is met as
    "publish" and as "EVALSHA" or "EVAL".
    """

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._lock = threading.Lock()
        self._plans: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._rules: dict[str, Fault] = {}
        self._stragglers: list[tuple[socket.socket, bytes]] = []
        self._conversations: set[Conversation] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            conversations = list(self._conversations)
            stragglers, self._stragglers = self._stragglers, []
        _hang_up(self._listener)
        for conversation in conversations:
            conversation.hang_up()
        for upstream, _ in stragglers:
            _hang_up(upstream)
        for thread in self._threads:
            thread.join(10)

    # What tests tell it

    def meet(self, name: str, *faults: Fault) -> None:
        """The next requests of this name get these faults, one each; `PASS` lets one through."""
        with self._lock:
            self._plans[name].extend(faults)

    def always(self, name: str, fault: Fault) -> None:
        """From now on every request of this name that has no other plan gets this fault."""
        with self._lock:
            self._rules[name] = fault

    def relent(self) -> None:
        """No more faults for what is asked from now on."""
        with self._lock:
            self._plans.clear()
            self._rules.clear()

    def let_stragglers_through(self) -> list[bytes]:
        """What was held reaches the server at last, over its old connection; these are the raw answers."""
        with self._lock:
            stragglers, self._stragglers = self._stragglers, []
        return [_ask(upstream, request) for upstream, request in stragglers]

    def cut_all(self) -> None:
        """Every connection breaks, whatever it is doing."""
        with self._lock:
            conversations = list(self._conversations)
        for conversation in conversations:
            conversation.hang_up()

    # How it is done

    def fault_for(self, words: list[bytes]) -> Fault:
        """Counts a request and says what shall happen to it."""
        names = names_of(words)
        with self._lock:
            self.seen.update(names)
            for name in names:
                if self._plans[name]:
                    return self._plans[name].popleft()
            for name in names:
                if name in self._rules:
                    return self._rules[name]
        return PASS

    def hold(self, upstream: socket.socket, request: bytes) -> None:
        """Keep a request for later, with the connection that it will arrive on."""
        with self._lock:
            if not self._closed:
                self._stragglers.append((upstream, request))
                return
        upstream.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return self._listener.close()
            try:
                upstream = socket.create_connection(self._server, timeout=10)
            except OSError:  # a server that is down refuses its clients
                client.close()
                continue
            upstream.settimeout(None)
            for end in (client, upstream):
                # Without this a small write waits for the acknowledgement of the one before: 40 ms each.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conversation = Conversation(self, client, upstream)
            with self._lock:
                self._conversations.add(conversation)
                if self._closed:
                    conversation.hang_up()
            self._start(lambda talk=conversation: self._serve(talk))

    def _serve(self, conversation: "Conversation") -> None:
        conversation.run()
        with self._lock:
            self._conversations.discard(conversation)

    def _start(self, work: object) -> None:
        thread = threading.Thread(target=work, name="faulty-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()


class Conversation:
    """One client's connection and the one to the server that answers it."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream: socket.socket | None = upstream
        self._heard = b""
        self._on_answer = PASS
        self._silent = False

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: hung up, and select sees a closed socket
            while self._go_on():
                pass
        self._client.close()
        if self._upstream is not None:
            self._upstream.close()

    def hang_up(self) -> None:
        """From another thread: the thread that runs the conversation wakes up and closes it."""
        for end in (self._client, self._upstream):
            if end is not None:
                _shut_down(end)

    def _go_on(self) -> bool:
        """One step; whether the conversation goes on."""
        assert self._upstream is not None
        ready, _, _ = select.select([self._client, self._upstream], [], [])
        if self._upstream in ready and not self._hear_server(self._upstream):
            return False
        return self._client not in ready or self._hear_client()

    def _hear_server(self, upstream: socket.socket) -> bool:
        answer = upstream.recv(65536)
        fault, self._on_answer = self._on_answer, PASS
        time.sleep(fault.seconds)
        if not answer or fault.like(CUT_AFTER):
            return False
        if not self._silent:
            self._client.sendall(answer)
        return True

    def _hear_client(self) -> bool:
        said = self._client.recv(65536)
        if not said:
            return False
        self._heard += said
        while (end := request_end(self._heard)) is not None:
            request, self._heard = self._heard[:end], self._heard[end:]
            if not self._pass_on(request):
                return False
        return True

    def _pass_on(self, request: bytes) -> bool:
        assert self._upstream is not None
        fault = BLACK_HOLE if self._silent else self._proxy.fault_for(words_of(request))
        if fault.like(CUT_BEFORE):
            time.sleep(fault.seconds)
            return False
        if fault.like(STRAGGLE):
            upstream, self._upstream = self._upstream, None
            self._proxy.hold(upstream, request)
            return False
        if fault.like(BLACK_HOLE):
            self._silent = True
            return True
        self._on_answer = fault
        self._upstream.sendall(request)
        return True


def names_of(words: list[bytes]) -> list[str]:
    """What a request goes by: its command, and the name of our script if it is one."""
    command = words[0].decode("ascii", "replace").upper()
    sha = ""
    if command == "EVALSHA":
        sha = words[1].decode("ascii", "replace").lower()
    elif command == "EVAL":
        sha = hashlib.sha1(words[1], usedforsecurity=False).hexdigest()
    name = our_scripts().get(sha)
    return [command] if name is None else [command, name]


@functools.cache
def our_scripts() -> dict[str, str]:
    """The names of our scripts by their digests."""
    return {scripts.script(name).sha: name for name in scripts.all_names()}


def request_end(heard: bytes) -> int | None:
    """Where the first whole request ends: an array of bulk strings is all that clients send."""
    line = heard.find(b"\r\n")
    if line < 0:
        return None
    at = line + 2
    for _ in range(int(heard[1:line])):
        line = heard.find(b"\r\n", at)
        if line < 0:
            return None
        at = line + 2 + int(heard[at + 1 : line]) + 2
    return at if at <= len(heard) else None


def words_of(request: bytes) -> list[bytes]:
    """The words of one whole request."""
    at = request.find(b"\r\n") + 2
    words = []
    while at < len(request):
        line = request.find(b"\r\n", at)
        size = int(request[at + 1 : line])
        words.append(request[line + 2 : line + 2 + size])
        at = line + 2 + size + 2
    return words


def _ask(upstream: socket.socket, request: bytes) -> bytes:
    """The whole answer: a second request behind the first has one that says where the first one's ends."""
    question, end = b"*2\r\n$4\r\nECHO\r\n$9\r\nthe end /\r\n", b"$9\r\nthe end /\r\n"
    answer = b""
    with upstream:
        upstream.settimeout(_ANSWER_SECONDS)
        upstream.sendall(request + question)
        while not answer.endswith(end):
            heard = upstream.recv(65536)
            if not heard:
                raise ConnectionError(f"the server hung up on a straggler after {answer!r}")
            answer += heard
    return answer.removesuffix(end)


def _shut_down(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _hang_up(end: socket.socket) -> None:
    _shut_down(end)
    end.close()
