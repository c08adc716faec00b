"""Asks a queue's server plain questions, with the library's patience for one that is away for a moment."""

from __future__ import annotations

from typing import Any

from redis_message_queue.keys import QueueKeys
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.port import Argument, finish
from redis_message_queue.sync.port import BlockingPort


class Look:
    """Commands that may be sent more than once, over a client of anybody's; answers are bytes, numbers and lists."""

    def __init__(self, client: Any, keys: QueueKeys) -> None:
        self._calls = Calls(BlockingPort(client), keys, GatewayOptions())
        self._key = keys.pending

    def ask(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """The answers to commands that are sent together."""
        return finish(self._calls.converse(self._key, commands, "read")) if commands else []

    def ask_at_once(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """The same, with nothing of anybody else's in between."""
        answers: list[Any] = self.ask(("MULTI",), *commands, ("EXEC",))[-1]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers
