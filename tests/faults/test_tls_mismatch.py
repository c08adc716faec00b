"""TLS at a port without it, and the other way round, is told by the first call within seconds."""

import asyncio
import socket
import ssl
import subprocess
import threading
import time

import pytest
import redis
import redis.asyncio

import redis_message_queue.asyncio
from redis_message_queue import ConfigurationError, RedisMessageQueue
from redis_message_queue.redis_py.client_port import _HANDSHAKE_SECONDS, _LOOK_SECONDS

pytestmark = pytest.mark.topic("Retries of Redis calls")


@pytest.fixture
def port_with_tls(tmp_path):
    """A port that shakes hands and then says nothing."""
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost"
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            while True:
                try:
                    raw, _ = listening.accept()
                except OSError:
                    return
                with raw:
                    raw.settimeout(60)
                    try:
                        context.wrap_socket(raw, server_side=True).close()
                    except OSError:  # what a client without TLS says
                        continue

        thread = threading.Thread(target=answer)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def publish(shell, url):
    if shell == "sync":
        with redis.Redis.from_url(url) as client:
            RedisMessageQueue("q", client=client).publish("a")
        return

    async def published():
        async with redis.asyncio.Redis.from_url(url) as client:
            await redis_message_queue.asyncio.RedisMessageQueue("q", client=client).publish("a")

    asyncio.run(published())


@pytest.mark.promise("TLS at a port without it, and the other way round, is told within 3 seconds.")
@pytest.mark.parametrize("shell", ["sync", "asyncio"])
def test_tls_at_a_port_without_it_is_told(clean_server, port_with_tls, shell):
    """Although such a server waits for ever, and so would the client."""
    assert _HANDSHAKE_SECONDS + _LOOK_SECONDS < 3
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"does not speak TLS at this port; use redis://.*, or ssl=False"):
        publish(shell, f"rediss://127.0.0.1:{clean_server.port}/0")
    assert time.monotonic() - began < 60  # of a busy machine
    with pytest.raises(ConfigurationError, match=r"the server speaks TLS at this port; use rediss://.*, or ssl=True"):
        publish(shell, f"redis://127.0.0.1:{port_with_tls}/0")
