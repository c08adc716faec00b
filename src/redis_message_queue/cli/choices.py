"""The parameters that many commands share: which server, and which queue on it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_message_queue.cli import connection
from redis_message_queue.options import (
    DEFAULT_MAX_DELIVERY_COUNT,
    DEFAULT_VISIBILITY_TIMEOUT_SECONDS,
    GatewayOptions,
)

if TYPE_CHECKING:
    from redis_message_queue import RedisMessageQueue
    from redis_message_queue.asyncio import RedisMessageQueue as AsyncRedisMessageQueue

_CONNECTION = "Connection"
_PATIENCE_SECONDS = 10.0  # with a server that went away, for a person who waits; workers have the library's two minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """Which server; as a parameter of a command it is the option `--url`."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            metavar="URL",
            envvar="REDIS_URL",
            help="The server: redis://, rediss:// or unix://; a cluster by any of its nodes.",
            rich_help_panel=_CONNECTION,
        ),
    ] = connection.DEFAULT_URL

    @property
    def shown_url(self) -> str:
        """For people: without user and password."""
        return connection.shown(self.url)

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Any]:
        """A redis-py client that has seen its server; it gives bytes unless ``decode_responses`` is set."""
        with connection.open_client(self.url, **options) as opened:
            yield opened

    @contextlib.asynccontextmanager
    async def async_client(self, **options: Any) -> AsyncIterator[Any]:
        """The same for asyncio."""
        async with connection.open_async_client(self.url, **options) as opened:
            yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChoice(ServerChoice):
    """Which queue on which server; as a parameter of a command it is QUEUE, `--url` and what its keys look like."""

    name: Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.", show_default=False)]
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", metavar="TEXT", help="Between the parts of a key.", rich_help_panel=_CONNECTION
        ),
    ] = "::"
    hash_tag: Annotated[
        bool | None,
        typer.Option(
            "--hash-tag/--no-hash-tag",
            help="Whether the name stands in braces in its keys; by itself for clusters only.",
            show_default=False,
            rich_help_panel=_CONNECTION,
        ),
    ] = None
    dead_letter_queue: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-queue",
            metavar="KEY",
            help="The key of the dead letters, if it is not `<name>::dlq`.",
            show_default=False,
            rich_help_panel=_CONNECTION,
        ),
    ] = None

    @contextlib.contextmanager
    def open(self, *, text: bool = False, **options: Any) -> Iterator[RedisMessageQueue]:
        """The queue, with further options of RedisMessageQueue; payloads are bytes, or str with ``text``."""
        from redis_message_queue import RedisGateway, RedisMessageQueue

        with self.client(decode_responses=text) as client:
            yield self._queue(RedisMessageQueue, RedisGateway, client, options)

    @contextlib.asynccontextmanager
    async def open_async(self, *, text: bool = False, **options: Any) -> AsyncIterator[AsyncRedisMessageQueue]:
        """The same for asyncio."""
        from redis_message_queue.asyncio import RedisGateway, RedisMessageQueue

        async with self.async_client(decode_responses=text) as client:
            yield self._queue(RedisMessageQueue, RedisGateway, client, options)

    def _queue(self, queue: Any, gateway: Any, client: Any, given: dict[str, Any]) -> Any:
        """All settings that a gateway has go to one: only a gateway can name another dead-letter list."""
        settings: dict[str, Any] = {"retry_budget_seconds": _PATIENCE_SECONDS}
        settings |= {field.name: given.pop(field.name) for field in fields(GatewayOptions) if field.name in given}
        lease = given.pop("visibility_timeout_seconds", DEFAULT_VISIBILITY_TIMEOUT_SECONDS)
        settings.setdefault("max_delivery_count", None if lease is None else DEFAULT_MAX_DELIVERY_COUNT)
        kept = gateway(
            redis_client=client,
            message_visibility_timeout_seconds=lease,
            dead_letter_queue=self.dead_letter_queue,
            hash_tag=self.hash_tag,
            **settings,
        )
        return queue(self.name, gateway=kept, key_separator=self.key_separator, **given)
