"""Publishes messages again that a condition selects among the dead letters or in the archive, each once for it."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from redis_message_queue import checks
from redis_message_queue.condition import RECORD, Condition, Kind, condition
from redis_message_queue.errors import ConfigurationError, ConfigurationTypeError, SelectionError
from redis_message_queue.protocol.records import pair, record_of
from redis_message_queue.spark.jobs import records
from redis_message_queue.spark.jobs.archive import read_archive
from redis_message_queue.spark.jobs.clear_errors import one_clear_error, reason
from redis_message_queue.spark.jobs.figures import ENTERING, LEAVING
from redis_message_queue.spark.jobs.progress import JsonResult, OnProgress, Progress, unheard
from redis_message_queue.spark.jobs.publishing import OUTCOME, PublishOptions, digest, publish_batches, publish_slowly
from redis_message_queue.spark.jobs.selecting import as_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PAGE = 1_000
_SHOWN = 10
_PARTITION_ROWS = 10_000
_LETTERS = pa.schema([("payload", pa.binary()), *records.OUTCOME])
# What conditions can speak of.
_OF_LETTERS = {name: kind for name, kind in RECORD.items() if name in ("json", *_LETTERS.names)}
_OF_ARCHIVE = {name: kind for name, kind in _OF_LETTERS.items() if name != "claimed_at"} | {
    "state": Kind.TEXT,  # the last event of a message, such as 'acked' or 'dead'
    "failures": Kind.NUMBER,
}


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PublishOptions):
    """What `replay` needs to know. ``queue`` is where the messages were; ``into`` is where they go, if elsewhere.

    ``where`` is a condition as `rmq redrive --where` has it, never SQL; or a Column, which needs a ``name`` beside it.
    """

    source: Literal["dead_letters", "archive"] = "dead_letters"
    path: str | None = None  # of the archive
    where: "str | Column | None" = None
    name: str | None = None  # two replays of one name never publish the same message twice; else those of a selection
    into: str | None = None
    max_messages: int | None = None
    rate: float | None = None  # messages a second
    dry_run: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source not in ("dead_letters", "archive"):
            raise ConfigurationError(f"source must be 'dead_letters' or 'archive', not {self.source!r}")
        if (self.source == "archive") != (self.path is not None):
            raise ConfigurationError("path is that of the archive: give it with source='archive', and only there")
        for option in ("path", "name", "into"):
            if getattr(self, option) is not None:
                checks.text(option, getattr(self, option))
        self._check_where()
        checks.whole_number("max_messages", self.max_messages, optional=True)
        checks.number("rate", self.rate, optional=True)
        checks.flag("dry_run", self.dry_run)

    def _check_where(self) -> None:
        from pyspark.sql import Column

        if isinstance(self.where, Column):
            if self.name is None:
                raise ConfigurationError("where is a Column, which says nothing by which to know it again: add a name")
        elif self.where is not None and not isinstance(self.where, str):
            raise ConfigurationTypeError(f"where must be a condition or a Column, not {type(self.where).__name__}")
        _ = self.condition

    @property
    def condition(self) -> Condition | None:
        """What ``where`` says, if it is text."""
        if not isinstance(self.where, str):
            return None
        return condition(self.where, _OF_LETTERS if self.source == "dead_letters" else _OF_ARCHIVE, option="where")

    @property
    def selection(self) -> str:
        """What the deduplication keys of this replay begin with."""
        if self.name is not None:
            return digest("name", self.name)
        chosen = self.condition
        return digest("selection", self.source, self.queue, "" if chosen is None else chosen.text)


@dataclass(frozen=True, kw_only=True)
class ReplayResult(JsonResult):
    """What was selected, and what became of it."""

    queue: str
    into: str
    matched: int
    published: int
    suppressed: int  # published by an earlier run of the same replay
    without_payload: int
    without_id: int
    dry_run: bool
    examples: list[str]  # ids


def replay(spark: "SparkSession", options: ReplayOptions, on_progress: OnProgress = unheard) -> ReplayResult:
    """Select, and publish again with `replay_of` in each new message. What was selected stays where it is."""
    with one_clear_error("the replay"):
        found = dead_letters(spark, options) if options.source == "dead_letters" else archived_messages(spark, options)
        chosen = select(found, options).persist()
        try:
            return _replay(chosen, options, on_progress)
        finally:
            chosen.unpersist()


def _replay(chosen: "DataFrame", options: ReplayOptions, on_progress: OnProgress) -> ReplayResult:
    counted: Any = chosen.selectExpr(
        "count(*)", "count_if(payload is null)", "count_if(payload is not null and id is null)"
    ).first()
    matched, without_payload, without_id = counted
    usable = chosen.where("payload is not null and id is not null")
    on_progress(Progress("selected", 0, matched - without_payload - without_id))
    if matched and without_payload == matched:
        raise SelectionError(
            f"none of the {matched} selected messages has its payload in the archive; open the queue with "
            'journal="payload" to keep them, or replay its dead letters'
        )
    examples = [row.id for row in usable.orderBy("published_at", "id").select("id").limit(_SHOWN).collect()]
    published, suppressed = (0, 0) if options.dry_run else _publish(usable, matched, options, on_progress)
    return ReplayResult(
        queue=options.queue,
        into=options.into or options.queue,
        matched=matched,
        published=published,
        suppressed=suppressed,
        without_payload=without_payload,
        without_id=without_id,
        dry_run=options.dry_run,
        examples=examples,
    )


def _publish(usable: "DataFrame", matched: int, options: ReplayOptions, on_progress: OnProgress) -> tuple[int, int]:
    into = _target(options)
    rows = usable.selectExpr(
        *("payload", "tenant", "published_at", "id"),
        f"concat('replay:{options.selection}:', id) as key",
        "to_json(struct(id as replay_of)) as extras",
    )
    total = matched
    if options.rate is not None:
        # One line, in the order of publication: a rate is kept by one who counts, not by many who guess.
        line = (row.asDict() for row in rows.orderBy("published_at", "id").toLocalIterator())
        told = publish_slowly(into, line, options.rate, lambda done: on_progress(Progress("publishing", done, total)))
    else:
        parts = max(1, min(rows.sparkSession.sparkContext.defaultParallelism, -(-matched // _PARTITION_ROWS)))
        spread = rows.repartitionByRange(parts, "published_at", "id").sortWithinPartitions("published_at", "id")
        sent = spread.select("payload", "tenant", "key", "extras").mapInArrow(publish_batches(into), OUTCOME)
        found: Any = sent.selectExpr("coalesce(sum(published), 0)", "coalesce(sum(suppressed), 0)").first()
        told = (found[0], found[1])
    on_progress(Progress("published", told[0], total))
    return told


def _target(options: ReplayOptions) -> PublishOptions:
    given = {one.name: getattr(options, one.name) for one in fields(PublishOptions)}
    # Whose dead letters they were does not matter there, and another queue may lie in another slot.
    return PublishOptions(**given | {"queue": options.into or options.queue, "dead_letter_key": None})


# -- what can be selected from


def select(found: "DataFrame", options: ReplayOptions) -> "DataFrame":
    """The rows that the condition names, the oldest first where only some are wanted."""
    from pyspark.errors import AnalysisException

    chosen, said = found, options.condition
    try:
        if said is not None:
            chosen = found.where(as_column(said))
        elif options.where is not None:
            chosen = found.where(options.where)
    except AnalysisException as error:
        raise SelectionError(
            f"where is no condition on these columns: {reason(str(error))} Columns: {', '.join(found.columns)}."
        ) from error
    if options.max_messages is not None:
        chosen = chosen.orderBy("published_at", "id").limit(options.max_messages)
    return chosen


def dead_letters(spark: "SparkSession", options: ReplayOptions) -> "DataFrame":
    """The dead letters that the queue has now, with what their records know."""
    keys, client = options.keys, options.connect()
    try:
        payloads, notes = _whole(client, keys.dead_letter), _whole(client, keys.records(keys.dead_letter))
    finally:
        client.close()
    letters = (asdict(record_of(one, decode=False)) for one in pair(payloads, notes, whole=True) if one.payload)
    rows = [{name: letter[name] for name in _LETTERS.names} for letter in letters]
    return spark.createDataFrame(pa.Table.from_pylist(rows, _LETTERS))


def _whole(client: Any, key: str) -> list[bytes]:
    """A list, newest first, read page by page from its old end, which does not move when letters arrive."""
    found: list[bytes] = []
    while True:
        page = client.lrange(key, -len(found) - _PAGE, -len(found) - 1)
        found[:0] = page
        if len(page) < _PAGE:
            return found


def archived_messages(spark: "SparkSession", options: ReplayOptions) -> "DataFrame":
    """The archive, one row a message: what it was, how often it was tried, and how it ended."""
    from pyspark.sql.functions import expr

    assert options.path is not None  # checked at the door
    entries = read_archive(spark, options.path, options.queue).where("id is not null and event != 'duplicate'")
    messages = entries.groupBy("id").agg(
        expr("max_by(payload, serial) filter (where payload is not null) as payload"),
        expr("max(tenant) as tenant"),
        expr("max_by(event, serial) as state"),
        expr("max(count) as delivery_count"),
        expr("max(failures) as failures"),
        expr(f"min(at) filter (where event in {ENTERING}) as published_at"),
        expr(f"max(at) filter (where event in {LEAVING}) as finished_at"),
        expr("max_by(reason, serial) filter (where reason is not null) as reason"),
        expr("max_by(error_type, serial) filter (where error_type is not null) as error_type"),
        expr("max(replay_of) as replay_of"),
    )
    # A redriven message has the payload of the one that it repeats.
    first = messages.where("payload is not null").selectExpr("id as replay_of", "payload as first_payload")
    # The text of an error is not in the journal, but in the records of settled messages.
    settled = records.read_records(spark, options.path, options.queue)
    errors = settled.groupBy("id").agg(expr("max_by(error, finished_at) as error"))
    whole = messages.join(first, "replay_of", "left").join(errors, "id", "left")
    columns = [one if one != "payload" else "coalesce(payload, first_payload) as payload" for one in messages.columns]
    return whole.selectExpr(*columns, "error")
