"""Values that no caller should pass: each is refused with a typed error before anything is written."""

from enum import Enum

import pytest

from redis_message_queue import ConfigurationError, ConfigurationTypeError, RedisMessageQueueError, RetryPolicy
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.protocol.operate.condition import condition
from redis_message_queue.values.plain_values import brief, is_text, plain

pytestmark = pytest.mark.topic("Options")
HUGE = 10**5_000  # more digits than Python writes


class Unshown:
    """An object whose `repr` fails."""

    def __repr__(self):
        raise AssertionError("nobody needs to call this")


class Colour(str, Enum):  # noqa: UP042  a StrEnum is shown by its value; this one is not
    RED = "red"


class Impostor:
    """What a mock with a spec does."""

    __class__ = str  # type: ignore[assignment]


@pytest.mark.parametrize("value", [HUGE, -HUGE, 2**53 + 1], ids=["huge", "huge and negative", "not exact"])
@pytest.mark.parametrize("option", ["max_delivery_count", "max_pending_length", "max_payload_bytes"])
def test_a_number_that_redis_cannot_count_to(option, value):
    """It would be an error of Redis in the middle of a publish."""
    import redis

    from redis_message_queue import RedisMessageQueue

    with pytest.raises(ConfigurationError, match=option):
        RedisMessageQueue("jobs", client=redis.Redis(), **{option: value})


@pytest.mark.parametrize("value", [HUGE, Unshown(), [Unshown()], Impostor()], ids=lambda one: type(one).__name__)
def test_an_error_never_needs_the_repr_of_what_it_is_about(value):
    """That may fail, be endless, or control a terminal."""
    for refused in (
        lambda: RetryPolicy(retry_on=value),
        lambda: RetryPolicy(max_attempts=-HUGE),
        lambda: condition(value),
        lambda: EmbeddedRedis(port=value),
        lambda: EmbeddedRedis(config=value),
        lambda: EmbeddedRedis(directory=value),
    ):
        with pytest.raises(RedisMessageQueueError):
            refused()


def test_what_an_error_shows():
    """Short plain values as they are, everything else by its type."""
    assert [brief(one) for one in (None, True, 5, 1.5, "a", int)] == [
        "None",
        "True",
        "5",
        "1.5",
        "'a'",
        "<class 'int'>",
    ]
    assert (brief(HUGE), brief("x" * 200), brief(Unshown())) == ("an int of that size", "a str", "a Unshown")


def test_a_member_of_an_enum_stands_for_its_value():
    """Also where a subclass shows or encodes itself as something else."""
    assert plain(Colour.RED) == "red" and type(plain(Colour.RED)) is str
    assert plain(True) is True
    assert not is_text(Impostor())


@pytest.mark.parametrize("config", [{"save": "1\0"}, {"save": "a\nb"}, {5: "x"}, {"save": 1.5}, {"save": True}, "save"])
def test_settings_of_an_embedded_server(config):
    """They become lines of a file."""
    with pytest.raises(ConfigurationError, match="config"):
        EmbeddedRedis(config=config)


@pytest.mark.parametrize("given", [{"port": True}, {"port": "1"}, {"directory": 5}, {"append_only": 1}])
def test_types_of_an_embedded_server(given):
    """A bool is no port, and a number no directory."""
    with pytest.raises(ConfigurationTypeError, match=next(iter(given))):
        EmbeddedRedis(**given)
