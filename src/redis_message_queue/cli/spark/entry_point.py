"""rmq spark entry-point: the file that spark-submit runs."""

from __future__ import annotations

from pathlib import Path

from redis_message_queue import spark
from redis_message_queue.cli.output import Output

FILE = Path(spark.__file__).parent / "submit" / "rmq_spark.py"


def entry_point(output: Output) -> None:
    """Print the file to give to spark-submit: it runs the commands of `rmq spark` on your cluster.

    spark-submit --master yarn "$(rmq spark entry-point)" archive orders s3://lake/queues
    """
    if output.json:
        output.line({"path": str(FILE)})
    else:
        print(FILE)
