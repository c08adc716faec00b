"""The queue in Spark: what data engineers import, loaded when it is first used.

from redis_message_queue.spark import session

spark = session("my job")
orders = spark.readStream.format("redis_message_queue").option("url", url).option("queue", "orders").load()
"""

import importlib
from typing import TYPE_CHECKING, Any

from redis_message_queue.spark.extra import require_extra

if TYPE_CHECKING:
    from redis_message_queue.spark.connector import register
    from redis_message_queue.spark.driver import prepare, session

__all__ = ["prepare", "register", "session"]

# Where each public name lives. PySpark takes most of a second to import, and may not be there at all.
_HOMES = {"prepare": "driver", "register": "connector", "session": "driver"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra()
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
