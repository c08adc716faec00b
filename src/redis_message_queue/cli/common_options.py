"""The parameters that many commands share: which server, which queue, and how messages are delivered.

An option that a queue has too is called the same here and takes its help from `options/declared.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer
from redis.exceptions import RedisError

from redis_message_queue.cli import clients as connection
from redis_message_queue.options.declared import (
    DEFAULT_MAX_DELIVERY_COUNT,
    DEFAULT_RETRY_BUDGET_SECONDS,
    DEFAULT_TRACKING_LENGTH,
    DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
    GatewayOptions,
    QueueArguments,
    descriptions,
)
from redis_message_queue.options.retry_policy import RetryPolicy
from redis_message_queue.stored.keys import QueueKeys

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue
    from redis_message_queue.asyncio import RedisMessageQueue as AsyncRedisMessageQueue

_CONNECTION, _DELIVERY, _FAILURE, _KEPT = "Connection", "Delivery", "Failure", "What is kept"
# How long a person waits for a server that went away; workers wait for the library's two minutes.
_RETRY_BUDGET_SECONDS = 10.0
_DESCRIPTIONS = descriptions(GatewayOptions) | descriptions(QueueArguments)


def queue_option(name: str, panel: str | None, *flags: str, none: str = "0", **settings: Any) -> Any:
    """Return an option with its help from `options/declared.py`, and ``none`` for None.

    Without a panel, it is on the first page of help.
    """
    said = _DESCRIPTIONS[name]
    return typer.Option(*flags, help=re.sub(r"`?\bNone\b`?", none, said), rich_help_panel=panel, **settings)


KeySeparator = Annotated[str, queue_option("key_separator", _CONNECTION, metavar="TEXT")]
DeadLetterQueue = Annotated[str | None, queue_option("dead_letter_queue", _CONNECTION, metavar="KEY")]
HashTag = Annotated[bool | None, queue_option("hash_tag", _CONNECTION, "--hash-tag/--no-hash-tag", none="The default")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """The server of a command: the option `--url`."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            metavar="URL",
            envvar="REDIS_URL",
            help="The server: redis://, rediss:// or unix://. For a cluster, any of its nodes.",
        ),
    ] = connection.DEFAULT_URL

    @property
    def shown_url(self) -> str:
        """The URL without user and password."""
        return connection.without_password(self.url)

    def client(self, **options: Any) -> contextlib.AbstractContextManager[Any]:
        """Open a redis-py client that has reached its server; it returns bytes unless ``decode_responses`` is set."""
        return connection.open_client(self.url, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChoice(ServerChoice):
    """The queue of a command: QUEUE, `--url` and how its keys are named."""

    name: Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
    key_separator: KeySeparator = "::"
    hash_tag: HashTag = None
    dead_letter_queue: DeadLetterQueue = None
    partitions: Annotated[
        int | None,
        queue_option("partitions", _CONNECTION, metavar="N", min=1, show_default="as stored, or 1 for a new queue"),
    ] = None
    partition: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="Work with this partition alone, as if it were a queue; the first one is 0.",
            show_default="all of them",
            rich_help_panel=_CONNECTION,
        ),
    ] = None

    @contextlib.contextmanager
    def open(self, *, text: bool = False, **options: Any) -> Iterator[RedisMessageQueue]:
        """Open the queue, with further options of RedisMessageQueue; payloads are bytes, or str with ``text``."""
        from redis_message_queue import RedisGateway, RedisMessageQueue

        with self.client(decode_responses=text) as client:
            gateway, given = self._gateway(RedisGateway, client, options)
            with contextlib.suppress(RedisError):  # the queue itself says what is wrong
                stored = None if self.partitions else client.hmget(self._meta(gateway), "partitions")
                given.setdefault("partitions", self.partitions or _count(stored))
            queue = RedisMessageQueue(self.name, gateway=gateway, key_separator=self.key_separator, **given)
            yield queue if self.partition is None else queue.partition(self.partition)

    @contextlib.asynccontextmanager
    async def open_async(self, *, text: bool = False, **options: Any) -> AsyncIterator[AsyncRedisMessageQueue]:
        """Open the same for asyncio."""
        from redis_message_queue.asyncio import RedisGateway, RedisMessageQueue

        async with connection.open_async_client(self.url, decode_responses=text) as client:
            gateway, given = self._gateway(RedisGateway, client, options)
            with contextlib.suppress(RedisError):
                stored = None if self.partitions else await client.hmget(self._meta(gateway), "partitions")
                given.setdefault("partitions", self.partitions or _count(stored))
            queue = RedisMessageQueue(self.name, gateway=gateway, key_separator=self.key_separator, **given)
            yield queue if self.partition is None else queue.partition(self.partition)

    def _meta(self, gateway: Any) -> str:
        """Where the number of partitions is stored."""
        keys: QueueKeys = gateway._keys(self.name, self.key_separator)
        return keys.counted

    def _gateway(self, gateway: Any, client: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Make the gateway, and return what is left for the queue: only a gateway can name another dead-letter list."""
        settings: dict[str, Any] = {"retry_budget_seconds": _RETRY_BUDGET_SECONDS}
        settings |= {field.name: given.pop(field.name) for field in fields(GatewayOptions) if field.name in given}
        lease = given.pop("visibility_timeout_seconds", DEFAULT_VISIBILITY_TIMEOUT_SECONDS)
        settings.setdefault("max_delivery_count", None if lease is None else DEFAULT_MAX_DELIVERY_COUNT)
        made = gateway(
            redis_client=client,
            message_visibility_timeout_seconds=lease,
            dead_letter_queue=self.dead_letter_queue,
            hash_tag=self.hash_tag,
            **settings,
        )
        return made, given


def _count(stored: list[Any] | None) -> int:
    """The number of partitions that was read; 1 for a queue that does not exist."""
    number = stored[0] if stored else None
    return int(number) if number is not None and number.isdigit() else 1


def _number(name: str, panel: str | None, metavar: str = "N", **settings: Any) -> Any:
    return queue_option(name, panel, metavar=metavar, min=0, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions:
    """How messages are leased, and what happens to those that fail; 0 means None.

    The defaults are those of the library, but for the heartbeat: whoever runs a command cannot renew a lease, and does
    not know before how long it takes.
    """

    visibility_timeout_seconds: Annotated[float, _number("visibility_timeout_seconds", None, "SECONDS")] = (
        DEFAULT_VISIBILITY_TIMEOUT_SECONDS
    )
    heartbeat_interval_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Renew the lease this often while a handler runs. Must be less than half of the visibility timeout. "
            "0 renews nothing.",
            show_default="a third of the visibility timeout",
            rich_help_panel=_DELIVERY,
        ),
    ] = None
    max_processing_seconds: Annotated[
        float, _number("max_processing_seconds", _DELIVERY, "SECONDS", show_default="no limit")
    ] = 0.0
    ordered_tenants: Annotated[bool, queue_option("ordered_tenants", _DELIVERY, "--ordered-tenants")] = False
    max_delivery_count: Annotated[
        int | None, _number("max_delivery_count", _FAILURE, show_default=str(DEFAULT_MAX_DELIVERY_COUNT))
    ] = None
    max_attempts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="How often to try a message. It then goes to the dead letters; if N is 1 and there is a failed list, "
            "to that.",
        ),
    ] = 1
    initial_delay_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long to wait before the second attempt; each further wait is twice as long.",
            rich_help_panel=_FAILURE,
        ),
    ] = 1.0
    max_delay_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="The longest wait between attempts.", rich_help_panel=_FAILURE),
    ] = 3600.0
    consumer_name: Annotated[
        str | None, queue_option("consumer_name", _DELIVERY, metavar="NAME", show_default=False)
    ] = None
    enable_failed_queue: Annotated[bool, queue_option("enable_failed_queue", _KEPT)] = False
    enable_completed_queue: Annotated[bool, queue_option("enable_completed_queue", _KEPT)] = False
    max_failed_length: Annotated[int, _number("max_failed_length", _KEPT)] = DEFAULT_TRACKING_LENGTH
    max_completed_length: Annotated[int, _number("max_completed_length", _KEPT)] = DEFAULT_TRACKING_LENGTH
    max_dead_letter_length: Annotated[int, _number("max_dead_letter_length", _KEPT)] = 0

    def queue_options(self) -> dict[str, Any]:
        """Return these as options of a queue, which checks them."""
        options: dict[str, Any] = {
            name: getattr(self, name) or None
            for name in (
                *("visibility_timeout_seconds", "heartbeat_interval_seconds", "max_processing_seconds"),
                *("max_failed_length", "max_completed_length", "max_dead_letter_length"),
            )
        }
        if self.heartbeat_interval_seconds is None and self.visibility_timeout_seconds:
            options["heartbeat_interval_seconds"] = self.visibility_timeout_seconds / 3
        if self.max_delivery_count is not None:
            options["max_delivery_count"] = self.max_delivery_count or None
        return options | {
            "ordered_tenants": self.ordered_tenants,
            "enable_failed_queue": self.enable_failed_queue,
            "enable_completed_queue": self.enable_completed_queue,
            "consumer_name": self.consumer_name,
            "retry_policy": self._retry_policy(),
            "retry_budget_seconds": DEFAULT_RETRY_BUDGET_SECONDS,  # a long-running command can wait for its server
        }

    def _retry_policy(self) -> RetryPolicy | None:
        if self.max_attempts == 1:
            return None
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_delay_seconds=self.initial_delay_seconds,
            max_delay_seconds=max(self.initial_delay_seconds, self.max_delay_seconds),
        )
