"""spark-options.md: what the format of Spark takes, from `spark/options.py`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from docs.reference.markdown import code, page, prose, sentence, table
from redis_message_queue.spark.options import SinkOptions, SourceOptions, TableOptions, spoken

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
            matter. An unknown name, a value that cannot work and an option of another part raise
            `ConfigurationError` before anything is read or written; a URL is never shown.
            See [how to use the queue in Spark](../how-to/spark.md).
        """),
        *tables,
    )


def _options_of(role: type) -> str:
    hints = get_type_hints(role, include_extras=True)
    rows = (
        (code(spoken(one.name)), _default_of(one.default), sentence(str(get_args(hints[one.name])[2])))
        for one in fields(role)  # type: ignore[arg-type]  # all of them are dataclasses
    )
    return table(("option", "default", "what it does"), rows)


def _default_of(value: Any) -> str:
    if value is MISSING:
        return "required"
    if value is None:
        return ""
    return code(f"{value:g}" if isinstance(value, float) else str(value).lower())
