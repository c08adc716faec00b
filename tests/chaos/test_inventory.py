"""The keys that are left at the end are compared with the key map."""

import pytest

from chaos.evidence import StoredKey, stored_key
from chaos.inventory import check_keys
from tests.tables import row

QUEUES = ["orders", "{transfers}", "{transfers}.results"]


def test_what_the_design_keeps_may_stay(subtests: pytest.Subtests) -> None:
    for key in [
        StoredKey("orders::completed", "list", None, 10),
        StoredKey("orders::records::dlq", "list", None, 1),
        StoredKey("orders::deduplication::order 7", "string", 12.0, 16),
        StoredKey("orders::tenant_deduplication::4:acme:a::b", "string", 12.0, 16),
        StoredKey("orders::reply::AAAA", "string", 130.0, 20),
        StoredKey("orders::wakeup", "list", None, 1),
        StoredKey("orders::journal", "stream", None, 500),
        StoredKey("orders::meta", "hash", None, 4),
        StoredKey("orders::group::reports", "hash", None, 8),
        StoredKey("{transfers}.results::meta", "hash", None, 4),
        StoredKey("redis_message_queue::queues", "set", None, 3),
    ]:
        with row(subtests, key=key.name):
            assert list(check_keys([key], QUEUES)) == []


def test_what_the_design_does_not_know_is_found(subtests: pytest.Subtests) -> None:
    for key, complaint in [
        (StoredKey("others::pending", "list", None, 1), "belongs to no queue"),
        (StoredKey("redis_message_queue::queues", "list", None, 3), "belongs to no queue"),
        (StoredKey("orders::unheard-of", "string", None, 1), "is not in the key map"),
        (StoredKey("orders::completed", "set", None, 1), "is a set, and the key map says LIST"),
        (StoredKey("orders::reply::AAAA", "string", None, 20), "has no TTL"),
        (StoredKey("orders::completed", "list", 5.0, 20), "has a TTL"),
        (StoredKey("orders::reply::AAAA", "string", 1e6, 20), "lives for 1000000 s"),
        (StoredKey("orders::leases", "zset", None, 1), "has 1 elements"),
        (StoredKey("orders::tenant_pending::acme", "list", None, 3), "has 3 elements"),
        (StoredKey("orders::wakeup", "list", None, 2), "has 2 tokens"),
    ]:
        with row(subtests, key=key.name, complaint=complaint):
            (found,) = check_keys([key], QUEUES)
            assert complaint in found


def test_a_key_that_expires_while_it_is_read_is_not_counted() -> None:
    """It has neither a type nor a TTL any more."""
    assert stored_key("orders::reply::AAAA", "string", 20, -2) is None
    assert stored_key("orders::reply::AAAA", "none", 0, -2) is None
    assert stored_key("orders::meta", "hash", 4, -1) == StoredKey("orders::meta", "hash", None, 4)
    assert stored_key("orders::reply::AAAA", "string", 20, 1500) == StoredKey("orders::reply::AAAA", "string", 1.5, 20)
