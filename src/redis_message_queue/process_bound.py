"""What cannot leave its process, because it holds connections and counts its calls."""

from __future__ import annotations

from typing import NoReturn

from redis_message_queue.errors import ConfigurationTypeError


class ProcessBound:
    """Refuses to be pickled or copied: two objects that count on from the same call would get each other's answers."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise ConfigurationTypeError(
            f"a {type(self).__name__} cannot be pickled or copied; "
            "make the client and the queue in the process that uses them"
        )
