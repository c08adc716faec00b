"""How a consumer of a queue with partitions claims while none of them can be reached."""

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


def open_queue() -> tuple[PartitionedQueue, MemoryPort]:
    """A queue with three partitions, each of which has been reached once. A rest may last longer than a claim."""
    setup = Setup(message_wait_interval_seconds=WAIT, retry_max_delay_seconds=60.0)
    port = setup.port(socket_timeout=SOCKET_TIMEOUT)
    store = PartitionedStore(port, partition_stores(port, setup.keys, setup.settings, 3))
    queue = PartitionedQueue(QueueOptions(name="orders"), store)
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
