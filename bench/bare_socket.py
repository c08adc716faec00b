"""The same commands as the baseline, written to a socket without any client: what redis-py itself costs."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from bench.payload import identity
from bench.raw import WINDOW_SECONDS, Keys


def _packed(*parts: str | bytes | int) -> bytes:
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n%b" % (len(encoded), b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded))


class SyncQueue:
    """One connection that is never checked, never opened again and never shared."""

    def __init__(self, url: str, name: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname or "localhost", address.port or 6379))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._key = Keys(url, name)

    def _send(self, packed: bytes, lines: int = 1) -> bytes:
        self._socket.sendall(packed)
        reply = self._socket.recv(65536)
        while reply.count(b"\r\n") < lines:
            reply += self._socket.recv(65536)
        return reply

    def publish(self, message: dict[str, Any]) -> None:
        self._send(_packed("LPUSH", self._key.pending, json.dumps(message)))

    def publish_once(self, message: dict[str, Any]) -> None:
        key = self._key
        marker = key.marker + identity(message)
        self._send(_packed("EVALSHA", key.script, 2, marker, key.pending, json.dumps(message), WINDOW_SECONDS))

    def publish_batch(self, messages: list[dict[str, Any]]) -> None:
        packed = b"".join(_packed("LPUSH", self._key.pending, json.dumps(message)) for message in messages)
        self._send(packed, len(messages))

    def consume(self, _: dict[str, Any]) -> None:
        key = self._key
        reply = self._send(_packed("LMOVE", key.pending, key.processing, "RIGHT", "LEFT"), 2)
        self._send(_packed("LREM", key.processing, 1, reply.split(b"\r\n")[1]))


class AsyncQueue:
    """Not measured."""

    def __init__(self, url: str, name: str) -> None:
        pass
