"""A WSGI application whose module makes and uses its queue, before the server forks its workers.

POST /<text> publishes the text; GET handles a message. Both reply in JSON with the process id of the worker. The port
of Redis is in RMQ_TEST_PORT.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis

from redis_message_queue import RedisMessageQueue

client = redis.Redis(host="127.0.0.1", port=int(os.environ["RMQ_TEST_PORT"]))
queue = RedisMessageQueue("forks", client=client, enable_completed_queue=True, message_wait_interval_seconds=0)
for number in range(3):
    queue.publish(f"of the master {number}")
    with queue.process_message() as message:
        assert message == b"of the master %d" % number


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] == "POST":
        answer: Any = queue.publish(environ["PATH_INFO"].removeprefix("/"))
    else:
        with queue.process_message() as message:
            answer = None if message is None else message.decode()
    time.sleep(0.02)  # so that the other worker takes the next request
    body = json.dumps({"worker": os.getpid(), "answer": answer}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
