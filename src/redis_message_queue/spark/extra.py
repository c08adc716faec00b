"""Says which part of the extra [spark] is missing, before an import deep inside says it badly."""

import importlib
import importlib.util
import re

from redis_message_queue.errors import MissingExtraError

# Since 4.2 a stream reader is given its start and its limit, which the source is built on.
OLDEST_PYSPARK = (4, 2)
_MODULES = ("pyspark", "py4j", "pyarrow", "pandas")
_NEXT_STEP = "Run: pip install 'redis-message-queue[spark]'"


def require_extra() -> None:
    """Raise MissingExtraError unless everything is there that the extra brings and Spark needs."""
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"redis_message_queue.spark needs {', '.join(missing)}. {_NEXT_STEP}")
    told = str(importlib.import_module("pyspark").__version__)
    version = tuple(map(int, re.findall(r"\d+", told)[:2]))
    if version < OLDEST_PYSPARK:
        raise MissingExtraError(f"redis_message_queue.spark needs PySpark 4.2 or newer; this is {told}. {_NEXT_STEP}")
