"""spark-options.md: the options of the Spark format, from `spark/options.py`."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from docs.reference.markdown import code, page, prose, sentence, table
from redis_message_queue.spark.options import SinkOptions, SourceOptions, TableOptions, declared_options, spark_name

PARTS = {
    "Streaming source: `spark.readStream`": SourceOptions,
    "Sink: `df.write` and `df.writeStream`": SinkOptions,
    "Tables: `spark.read`": TableOptions,
}


def spark_options_page() -> str:
    tables = (part for title, role in PARTS.items() for part in (f"## {title}", _options_of(role)))
    return page(
        "Options in Spark",
        "`spark/options.py`",
        prose("""
            What `.option(name, value)` takes with the format `redis_message_queue`. The case of a name does not
            matter. Where a description says None, leave the option out. An unknown name, a value that cannot work and
            an option of another part raise `ConfigurationError` before anything is read or written; a URL is never
            shown. See [how to use the queue in Spark](../how-to/spark.md).
        """),
        *tables,
    )


def _options_of(role: type) -> str:
    rows = (
        (code(spark_name(name)), _default_of(option.default), sentence(option.description))
        for name, option in declared_options(role).items()
    )
    return table(("option", "default", "what it does"), rows)


def _default_of(value: Any) -> str:
    if value is MISSING:
        return "required"
    if value is None:
        return ""
    return code(f"{value:g}" if isinstance(value, float) else str(value).lower())
