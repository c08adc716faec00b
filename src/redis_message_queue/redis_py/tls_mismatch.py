"""Finds out whether a client speaks TLS to a port without it, or no TLS to a port that wants it."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from redis_message_queue.redis_py.redis_internals import uses_tls


def tls_mismatch(host: str, port: int, *, with_tls: bool, seconds: float) -> str | None:
    """Return what the port of the server speaks, and which URL it needs; None if that is not what is wrong.

    A server without TLS waits for the end of a line, so the handshake of a client would wait for ever.
    """
    due = time.monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as raw:
            raw.settimeout(max(0.01, due - time.monotonic()))
            if with_tls:
                raw.sendall(b"PING\r\n")
                if raw.recv(1) not in (b"+", b"-"):
                    return None
                return "the server does not speak TLS at this port; use redis:// instead of rediss://"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only to see whether it speaks TLS
            try:
                context.wrap_socket(raw).close()
            except ssl.SSLError as error:
                if "CERTIFICATE_REQUIRED" not in str(error):  # that is TLS, too
                    return None
            return "the server speaks TLS at this port; use rediss:// instead of redis://"
    except OSError:
        return None


def mismatch_of(client: Any, seconds: float) -> str | None:
    """Return the same for the server of a client; None if it has no host of its own, as behind Sentinels."""
    pool: Any = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", {})
    if hasattr(pool, "sentinel_manager") or settings.get("path") or "host" not in settings:
        return None
    with_tls = uses_tls(pool)
    said = tls_mismatch(str(settings["host"]), int(settings.get("port", 6379)), with_tls=with_tls, seconds=seconds)
    return None if said is None else f"{said}, or ssl={not with_tls}"
