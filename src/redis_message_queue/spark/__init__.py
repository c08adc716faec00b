"""The queue in Spark: what data engineers import, loaded when it is first used.

from redis_message_queue.spark import session

spark = session("my job")
orders = spark.readStream.format("redis_message_queue").option("url", url).option("queue", "orders").load()
"""

import importlib
import importlib.util
import re
from typing import TYPE_CHECKING, Any

from redis_message_queue.values.errors import MissingExtraError

if TYPE_CHECKING:
    from redis_message_queue.spark.connector import register
    from redis_message_queue.spark.driver import prepare, session
    from redis_message_queue.spark.jobs.job import translate_errors
    from redis_message_queue.spark.listener import QueueListener, StreamProgress

__all__ = ["QueueListener", "StreamProgress", "prepare", "register", "session", "translate_errors"]

# The module of each public name. PySpark takes most of a second to import, and may not be installed.
_MODULES = {
    "QueueListener": "listener",
    "StreamProgress": "listener",
    "prepare": "driver",
    "register": "connector",
    "session": "driver",
    "translate_errors": "jobs.job",
}
_REQUIRED = ("pyspark", "py4j", "pyarrow", "pandas", "jinja2", "deltalake")
# Since 4.2 Spark gives a stream reader its start and its limit, which the source is built on.
_OLDEST_PYSPARK = (4, 2)
_NEXT_STEP = "Run: pip install 'redis-exact-queue[spark]'"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra()
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def require_extra() -> None:
    """Raise MissingExtraError unless everything that the extra [spark] installs is there."""
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"redis_message_queue.spark needs {', '.join(missing)}. {_NEXT_STEP}")
    version = str(importlib.import_module("pyspark").__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST_PYSPARK:
        raise MissingExtraError(
            f"redis_message_queue.spark needs PySpark 4.2 or newer; {version} is installed. {_NEXT_STEP}"
        )
