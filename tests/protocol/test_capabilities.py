"""A gateway that lacks a capability says which one, and what to use instead."""

from dataclasses import fields

import pytest

from redis_message_queue.protocol.capabilities import Capabilities
from redis_message_queue.values.errors import GatewayContractError

NAMES = [field.name for field in fields(Capabilities) if field.name != "gateway"]


class Mine:
    """A gateway of the user's."""


@pytest.mark.parametrize("name", NAMES)
def test_our_gateway_has_every_capability(name):
    Capabilities().require(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_capability_has_an_error_that_says_what_to_use(name):
    none = Capabilities.of_custom(Mine(), publishes=True, consumes=True, has_client=False)
    with pytest.raises(GatewayContractError, match=r"custom gateway \(Mine\); use .+, or give the queue client="):
        none.require(name)


def test_a_subclass_of_our_gateway_lacks_only_what_it_overrides():
    publishes = Capabilities.of_custom(Mine(), publishes=True, consumes=False, has_client=True)
    consumes = Capabilities.of_custom(Mine(), publishes=False, consumes=True, has_client=True)
    lacks = {"chunks", "codecs", "headers", "repeats", "receipts", "time_limits", "hand_off_target", "schedules"}
    assert {name for name in NAMES if not getattr(publishes, name)} == lacks
    assert {name for name in NAMES if not getattr(consumes, name)} == {"batches", "codecs", "retries"}
