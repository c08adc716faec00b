"""How a consumer of a queue with partitions claims while none of them can be reached."""

from typing import Any

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.consume.consumer import Consumer
from redis_message_queue.protocol.partitioned_queue import PartitionedQueue
from redis_message_queue.protocol.partitioned_store import PartitionedStore, partition_stores
from redis_message_queue.protocol.port import finish
from redis_message_queue.sync.message_queue import ProcessMessage
from tests.protocol.port import REQUEST, MemoryPort
from tests.protocol.setup import Setup, process_all

WAIT = 2.0
SOCKET_TIMEOUT = 1.0


def new_queue(socket_timeout: float, **options: Any) -> tuple[PartitionedQueue, MemoryPort]:
    """A queue with three partitions. A rest may last longer than a claim."""
    setup = Setup(message_wait_interval_seconds=WAIT, retry_max_delay_seconds=60.0, **options)
    port = setup.port(socket_timeout=socket_timeout)
    store = PartitionedStore(port, partition_stores(port, setup.keys, setup.settings, 3))
    return PartitionedQueue(QueueOptions(name="orders"), store), port


def open_queue() -> tuple[PartitionedQueue, MemoryPort]:
    """The same, and each partition has been reached once."""
    queue, port = new_queue(SOCKET_TIMEOUT)
    assert process_all(queue) == []
    return queue, port


def lose_requests(port: MemoryPort, seconds: float) -> None:
    port.losses = dict.fromkeys(range(500), REQUEST)
    port.memory.at(seconds, port.losses.clear)


def test_a_claim_ends_in_time_although_all_partitions_rest():
    queue, port = open_queue()
    lose_requests(port, seconds=60.0)
    began = port.now()
    with ProcessMessage(queue) as payload:
        assert payload is None
    assert port.now() - began <= WAIT + SOCKET_TIMEOUT


def test_a_claim_looks_once_more_before_it_ends_with_nothing():
    """All partitions rest when Redis comes back, and would do so for longer than the claim."""
    queue, port = open_queue()
    lose_requests(port, seconds=WAIT - 0.1)
    began, sent = port.now(), len(port.sent)
    with ProcessMessage(queue) as payload:
        assert payload is None
    last_looks = [one for one in port.sent[sent:] if one.at >= began + WAIT - 0.1]
    assert {one.keys[0] for one in last_looks} == {part.store.keys.pending for part in queue.parts}


def test_a_loop_rests_between_its_requests_also_when_its_wait_is_over():
    """It has no time limit: it goes on until a partition answers, and must not send one request after the other."""
    queue, port = open_queue()
    lose_requests(port, seconds=20.0)
    began, sent = port.now(), len(port.sent)
    assert finish(Consumer(queue, in_loop=True).claim(1, WAIT)) == []
    assert port.now() - began >= 20.0
    assert len(port.sent) - sent < 60


def test_a_claim_has_no_more_patience_because_opening_the_queue_took_long():
    """To open a partition takes many requests: while a node is frozen, the others would wait as long as that."""
    queue, port = new_queue(socket_timeout=30.0, tenant_weights={"acme": 2})
    port.is_cluster, port.latency = True, 0.05  # on the way there, and on the way back
    consumer = Consumer(queue, in_loop=True)
    assert finish(consumer.claim(1, 0.0)) == []
    sent = len(port.sent)
    assert finish(consumer.claim(1, 0.0)) == []
    claims = [one for one in port.sent[sent:] if one.verb == "claim"]
    waits = [one.ends_at - one.at for one in claims if one.ends_at is not None]
    assert [round(seconds, 3) for seconds in waits] == [0.5] * 3
