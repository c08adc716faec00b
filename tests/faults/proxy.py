"""A proxy on loopback between clients and their server. It produces the network faults that a test orders.

with FaultyProxy(server.port) as proxy:
    proxy.meet("publish", CUT_AFTER)  # the first publish is executed, and its reply is lost
    client = redis.Redis(port=proxy.port)
"""

import contextlib
import functools
import hashlib
import itertools
import select
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from redis_message_queue.stored import scripts

# How long to wait for the reply to a late request before the test fails.
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Fault:
    """What happens to one request, and after which delay."""

    name: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return self.name

    def like(self, other: "Fault") -> bool:
        """Whether two faults are the same, apart from the delay."""
        return self.name == other.name


PASS = Fault("pass")
CUT_BEFORE = Fault("cut before")  # the request never reaches the server
CUT_AFTER = Fault("cut after")  # the server executes the request, and the reply is lost
ARRIVE_LATE = Fault("late")  # the client is cut off; the request is kept for `send_late_requests`
BLACK_HOLE = Fault("black hole")  # no reply comes, and the connection stays open


def delayed(seconds: float, fault: Fault = PASS) -> Fault:
    """A fault with a delay: the server executes the request at once, if at all, and the rest happens later."""
    return replace(fault, seconds=seconds)


class FaultyProxy:
    """Forwards every request, except for those that get a fault.

    A request has the name of its command, in capitals, and a script also its own: a publish is "publish"
    and also "EVALSHA" or "EVAL".
    """

    def __init__(self, server_port: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._lock = threading.Lock()
        self._plans: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._rules: dict[str, Fault] = {}
        self._late_requests: list[tuple[socket.socket, bytes]] = []
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
            late_requests, self._late_requests = self._late_requests, []
        _hang_up(self._listener)
        for conversation in conversations:
            conversation.hang_up()
        for upstream, _ in late_requests:
            _hang_up(upstream)
        for thread in self._threads:
            thread.join(10)

    # Called by tests

    def meet(self, name: str, *faults: Fault) -> None:
        """Give these faults to the next requests of this name, one each; `PASS` lets one through."""
        with self._lock:
            self._plans[name].extend(faults)

    def always(self, name: str, fault: Fault) -> None:
        """Give this fault to every request of this name that has no other."""
        with self._lock:
            self._rules[name] = fault

    def relent(self) -> None:
        """Forget all faults for later requests."""
        with self._lock:
            self._plans.clear()
            self._rules.clear()

    def planned(self) -> int:
        """How many faults are still waiting for their requests."""
        with self._lock:
            return sum(map(len, self._plans.values()))

    def redirect(self, server_port: int) -> None:
        """Lead new connections to another server, as an address does that has moved to a promoted replica."""
        self._server = (self._server[0], server_port)

    def send_late_requests(self) -> list[bytes]:
        """Send the held requests to the server at last, over their old connections. Returns the raw replies."""
        with self._lock:
            late_requests, self._late_requests = self._late_requests, []
        return [_ask(upstream, request) for upstream, request in late_requests]

    def cut_all(self) -> None:
        """Cut every connection, whatever it is doing."""
        with self._lock:
            conversations = list(self._conversations)
        for conversation in conversations:
            conversation.hang_up()

    # Internals

    def fault_for(self, words: list[bytes]) -> Fault:
        """Count a request and return its fault."""
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
        """Keep a request for later, with the connection that it will use."""
        with self._lock:
            if not self._closed:
                self._late_requests.append((upstream, request))
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
            except OSError:  # the server is down and refuses connections
                client.close()
                continue
            upstream.settimeout(None)
            for end in (client, upstream):
                # Without this, a small write waits 40 ms for the acknowledgement of the previous one.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conversation = Conversation(self, client, upstream)
            with self._lock:
                self._conversations.add(conversation)
                if self._closed:
                    conversation.hang_up()
            self._start(functools.partial(self._serve, conversation))

    def _serve(self, conversation: "Conversation") -> None:
        conversation.run()
        with self._lock:
            self._conversations.discard(conversation)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="faulty-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()


class Conversation:
    """One client connection and the server connection behind it."""

    def __init__(self, proxy: FaultyProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream: socket.socket | None = upstream
        self._received = b""
        self._on_answer = PASS
        self._silent = False

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the connection was closed during select
            while self._go_on():
                pass
        self._client.close()
        if self._upstream is not None:
            self._upstream.close()

    def hang_up(self) -> None:
        """Called from another thread: wakes up the thread of this conversation, which then closes it."""
        for end in (self._client, self._upstream):
            if end is not None:
                _shut_down(end)

    def _go_on(self) -> bool:
        """Do one step. Returns whether the conversation goes on."""
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
        self._received += said
        while (end := request_end(self._received)) is not None:
            request, self._received = self._received[:end], self._received[end:]
            if not self._pass_on(request):
                return False
        return True

    def _pass_on(self, request: bytes) -> bool:
        assert self._upstream is not None
        fault = BLACK_HOLE if self._silent else self._proxy.fault_for(words_of(request))
        if fault.like(CUT_BEFORE):
            time.sleep(fault.seconds)
            return False
        if fault.like(ARRIVE_LATE):
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
    """The name of a request: its command, or the name of our script."""
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
    """The names of our scripts by their digests. Clients with a journal or weights have copies of their own."""
    wishes = itertools.product((False, True), repeat=2)
    kinds = [scripts.version_field(journal=journal, weights=weights) for journal, weights in wishes]
    copies = [scripts.script(name, kind) for name in scripts.all_names() for kind in kinds]
    return {copy.sha: copy.verb for copy in copies}


def request_end(received: bytes) -> int | None:
    """Where the first complete request ends: clients send only arrays of bulk strings."""
    line = received.find(b"\r\n")
    if line < 0:
        return None
    at = line + 2
    for _ in range(int(received[1:line])):
        line = received.find(b"\r\n", at)
        if line < 0:
            return None
        at = line + 2 + int(received[at + 1 : line]) + 2
    return at if at <= len(received) else None


def words_of(request: bytes) -> list[bytes]:
    """The words of one complete request."""
    at = request.find(b"\r\n") + 2
    words = []
    while at < len(request):
        line = request.find(b"\r\n", at)
        size = int(request[at + 1 : line])
        words.append(request[line + 2 : line + 2 + size])
        at = line + 2 + size + 2
    return words


def _ask(upstream: socket.socket, request: bytes) -> bytes:
    """The complete reply: a second request behind the first one shows where the first reply ends."""
    question, end = b"*2\r\n$4\r\nECHO\r\n$9\r\nthe end /\r\n", b"$9\r\nthe end /\r\n"
    answer = b""
    with upstream:
        upstream.settimeout(_ANSWER_SECONDS)
        upstream.sendall(request + question)
        while not answer.endswith(end):
            received = upstream.recv(65536)
            if not received:
                raise ConnectionError(f"the server hung up on a late request after {answer!r}")
            answer += received
    return answer.removesuffix(end)


def _shut_down(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _hang_up(end: socket.socket) -> None:
    _shut_down(end)
    end.close()
