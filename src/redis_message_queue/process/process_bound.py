"""Keeps objects in the process that made them."""

from __future__ import annotations

from typing import NoReturn

from redis_message_queue.values.errors import ConfigurationTypeError


class ProcessBound:
    """Cannot be pickled or copied: two objects that continue the same call numbers would get each other's replies."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise ConfigurationTypeError(
            f"a {type(self).__name__} cannot be pickled or copied; "
            "make the client and the queue in the process that uses them"
        )
