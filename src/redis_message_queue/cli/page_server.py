"""Serves a few pages to probes and to Prometheus, in threads of its own."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_CONNECTIONS = 32  # the oldest gives way to one more

Page = Callable[[], tuple[bool, str, str]]
"""Returns whether all is well, the type of the text, and the text."""


class PageServer:
    """Serves pages by their paths, until it is closed. Raises OSError if it cannot listen."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], *, name: str) -> None:
        class Handler(_Handler):
            answers, program = pages, name

        self._server = _Server((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"{name}-pages", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Keeps a few connections: slow clients must neither lock out a probe nor take the supervisor's descriptors."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._open: deque[socket.socket] = deque()
        self._changing = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._open.append(request)
            if len(self._open) > MOST_CONNECTIONS:
                with contextlib.suppress(OSError):  # its thread sees the end, and closes it
                    self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing, contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away: that is no mistake of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    answers: Mapping[str, Page]
    program: str
    timeout = 5.0  # for a client that connects and says nothing
    sys_version = ""

    def do_GET(self) -> None:
        answer = self.answers.get(self.path.partition("?")[0])
        if answer is None:
            *most, last = self.answers
            pages = f"the pages are {', '.join(most)} and {last}" if most else f"the only page is {last}"
            self._send(404, "text/plain", f"{pages}\n")
        else:
            good, kind, text = answer()
            self._send(200 if good else 503, kind, text)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return self.program

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a probe comes every few seconds."""
