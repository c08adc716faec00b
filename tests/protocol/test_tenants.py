"""Tenants take turns, by weight if they have one, and no claim is empty while one of them waits."""

from itertools import product

import pytest

from redis_message_queue.protocol.port import finish
from redis_message_queue.protocol.publish.message_builder import PublishOverrides
from redis_message_queue.protocol.queue import QueueProtocol
from tests.protocol.port import REPLY, REQUEST, Lost
from tests.protocol.setup import CLAIMANT, Listener, Setup, process_all


def filled(lines: dict[str | None, int], **settings: object) -> Setup:
    """So many messages of each tenant, whose payload is its name and a number."""
    setup = Setup(**settings)
    queue = setup.queue()
    for tenant, number in lines.items():
        name = tenant or "nobody"
        finish(
            queue.publisher.publish_many([f"{name}{place}" for place in range(number)], PublishOverrides(tenant=tenant))
        )
    return setup


def taken(queue: QueueProtocol, *counts: int) -> list[str]:
    """Whose messages claims of so many each bring, in their order."""
    claimer = queue.store.claimer
    claims = [
        claim for count in counts for claim in finish(claimer.claim(claimer.attempt(), CLAIMANT, 0, count)).claims
    ]
    return [claim.envelope.tenant or "nobody" for claim in claims]


@pytest.mark.parametrize("counts", [(1,) * 8, (2,) * 4, (3, 3, 2), (8,)], ids=str)
def test_tenants_take_turns_however_many_are_claimed_at_once(counts):
    """A backlog of one is no disadvantage for another; messages without a tenant take turns with the rest."""
    setup = filled({"ann": 50, "bob": 2, None: 50, "cid": 1})
    order = taken(setup.queue(), *counts)
    assert set(order[:4]) == {"ann", "bob", "cid", "nobody"}
    assert set(order[4:7]) == {"ann", "bob", "nobody"}


def test_a_queue_without_tenants_knows_of_no_turns():
    setup = filled({None: 3})
    taken(setup.queue(), 1, 2)
    assert not setup.members_of(setup.keys.tenant_ring)


# Weights


WEIGHTS = {"ann": 3, "bob": 1}


def test_weights_are_written_before_the_first_claim_of_an_object_and_not_again():
    setup = filled({"ann": 9, "bob": 9}, tenant_weights=WEIGHTS)
    port = setup.port()
    taken(setup.queue(port), 1, 1)
    assert port.verbs() == ["open_queue", "SADD", "claim", "claim"]
    assert setup.hash_of(setup.keys.weights) == {b"ann": b"3"}


@pytest.mark.parametrize("counts", [(1,) * 8, (4, 4), (8,)], ids=str)
def test_a_tenant_with_three_times_the_weight_has_three_times_the_turns(counts):
    setup = filled({"ann": 9, "bob": 9}, tenant_weights=WEIGHTS)
    order = taken(setup.queue(), *counts)
    assert order.count("ann") == 6
    assert "bob" in order[:4]


def test_weights_whose_writing_was_lost_are_written_again_before_anything_is_claimed():
    for first, second in product((REQUEST, REPLY), repeat=2):
        setup = filled({"ann": 1, "bob": 1}, tenant_weights=WEIGHTS)
        port = setup.port({0: first, 1: second})
        assert len(process_all(setup.queue(port))) == 2
        assert port.verbs()[:5] == ["open_queue"] * 3 + ["SADD", "claim"]


def test_a_consumer_that_cannot_tell_its_weights_claims_nothing_and_tries_again():
    setup = filled({"ann": 1}, tenant_weights=WEIGHTS, retry_budget_seconds=0)
    port = setup.port({0: REQUEST})
    queue = setup.queue(port)
    with pytest.raises(Lost):
        process_all(queue)
    assert (port.verbs(), len(queue.store.claimer.unconfirmed)) == (["open_queue"], 0)
    assert process_all(queue) == [b"ann0"]
    assert port.verbs()[1:4] == ["open_queue", "SADD", "claim"]


def test_a_weight_of_one_takes_back_what_was_written_before():
    setup = Setup(tenant_weights={"ann": 1, "bob": 2})
    setup.memory.obey("HSET", setup.keys.weights, "ann", 3)
    taken(setup.queue(), 1)
    assert setup.hash_of(setup.keys.weights) == {b"bob": b"2"}


# Never told 'empty' while there is work


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_dead_of_many_tenants_do_not_hide_a_living_message(count):
    """More tenants than one claim turns to have nothing but what was delivered too often."""
    setup = filled({f"t{number}": 1 for number in range(9)}, max_delivery_count=1)
    store, listener = setup.store(), Listener()
    found = finish(store.claimer.claim(store.claimer.attempt(), CLAIMANT, 0, 9))
    finish(store.settler.requeue(found.claims, forgiven=False))
    finish(setup.queue().publish("good", tenant="z"))
    found = finish(store.claimer.claim(store.claimer.attempt(), listener, 0, count))
    assert [claim.envelope.payload for claim in found.claims] == [b"good"]
    assert len(listener.dead) == len(setup.dead) == 9
    assert not setup.members_of(setup.keys.tenant_ring)


def test_what_came_back_goes_first_in_its_own_tenants_turn_and_delays_no_other():
    """Three messages of one tenant were lost with their consumer; another's only message is the second to go."""
    setup = filled({"ann": 5})
    taken(setup.queue(), 3)
    finish(setup.queue().publish("bob0", tenant="bob"))
    setup.let_leases_run_out()
    assert process_all(setup.queue()) == [b"ann0", b"bob0", b"ann1", b"ann2", b"ann3", b"ann4"]
