"""A claim whose wait is over ends with one more attempt, and a refused connection is an attempt."""

import contextlib
import time

import pytest

from redis_message_queue.protocol.consume.claimer import PATIENCE_SECONDS
from tests.faults.shells import WAYS

pytestmark = pytest.mark.topic("Retries of Redis calls")

ANSWER_SECONDS = 60.0  # how long one answer may take; none of these calls may come near to it


@pytest.mark.promise(
    "While Redis is unreachable, a claim ends soon after its wait interval; the next call recovers its message."
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("wait", "options"), [(1.0, {}), (1.0, {"journal": True}), (0.0, {})], ids=["plain", "journal", "no wait"]
)
def test_a_claim_ends_with_its_wait_while_connections_are_refused(start_server, way, wait, options):
    server, attempts = start_server(), []
    with contextlib.closing(WAYS[way](server.port)) as shell:
        gateway = {"retry_budget_seconds": 600, "retry_max_delay_seconds": 0.3} | options
        queue = shell.queue(
            shell.client(socket_timeout=ANSWER_SECONDS),
            gateway | {"message_wait_interval_seconds": wait},
            on_event=lambda event: attempts.append((event.operation, time.monotonic())),
        )
        shell.publish(queue, "message")
        server.kill()
        attempts.clear()
        began = time.monotonic()
        assert shell.process(queue) is None
        assert time.monotonic() - began < ANSWER_SECONDS / 3
        late = [
            at
            for operation, at in attempts
            if operation == "retry_attempt" and at - began >= max(wait, PATIENCE_SECONDS)
        ]
        assert len(late) == 1
