"""How a consumer of a queue with partitions claims while none of them can be reached."""

from typing import Any

from redis_message_queue.options.declared import QueueOptions
from redis_message_queue.protocol.consume.consumer import Consumer
from redis_message_queue.protocol.parts import Parts
from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.queue import QueueProtocol
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.sync.message_queue import ProcessMessage
from tests.protocol.port import REQUEST, Lost, MemoryPort
from tests.protocol.setup import Setup, process_all

WAIT = 2.0
SOCKET_TIMEOUT = 1.0


def new_queue(socket_timeout: float, **options: Any) -> tuple[QueueProtocol, MemoryPort]:
    """A queue with three partitions. A rest may last longer than a claim."""
    setup = Setup(message_wait_interval_seconds=WAIT, retry_max_delay_seconds=60.0, **options)
    port = setup.port(socket_timeout=socket_timeout)
    store = RedisStore(port, setup.keys, setup.settings, Parts.of(port, setup.keys, setup.settings, 3))
    return QueueProtocol(QueueOptions(name="orders"), store), port


def open_queue() -> tuple[QueueProtocol, MemoryPort]:
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


def test_a_claim_does_not_spin_at_the_timer_of_a_partition_that_is_away():
    """A consumer wakes up for the delayed message of a partition. An ack finds out before that the node is away."""
    queue, port = open_queue()
    away, longest = queue.parts[1], 4 * WAIT
    calls = away.store.calls

    def lose() -> None:
        calls.has_failed(Lost("the node is away"))
        calls.watchers += 1  # and somebody finds out when it is back

    finish(away.publish("later", delay_seconds=0.6))  # within a slice of its wait
    port.memory.at(0.3, lose)
    sent = len(port.sent)
    assert finish(Consumer(queue, in_loop=True).claim(1, longest)) == []
    assert len(port.sent) - sent < 10 * longest


def test_a_new_client_serves_other_partitions_while_the_node_of_the_first_is_away():
    """It writes the weights of each partition. One that is open already needs nothing from the first."""
    setup = Setup(message_wait_interval_seconds=WAIT, tenant_weights={"acme": 2})
    options = QueueOptions(name="orders")
    queues, ports = list[QueueProtocol](), [setup.port(), setup.port()]
    for port in ports:
        port.is_cluster = True
        parts = Parts.of(port, setup.keys, setup.settings, 3)
        queues.append(QueueProtocol(options, RedisStore(port, setup.keys, setup.settings, parts)))
    before, newcomer = queues
    assert process_all(before) == []
    finish(before.parts[1].publish("a"))
    call = ports[1].call

    async def call_unless_away(command: Any, extra_keys: Any, arguments: Any) -> Any:
        if not any("::partition::" in key for key in command.keys):
            raise Lost("the node of the first partition is away")
        return await call(command, extra_keys, arguments)

    ports[1].call = call_unless_away  # type: ignore[method-assign]
    ((claim, payload),) = finish(Consumer(newcomer, in_loop=True).claim(1, WAIT))
    assert (claim.part, payload) == (newcomer.store.parts[1], b"a")
