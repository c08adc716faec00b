"""rmq demo: the story of the demo, from the command line."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, Output

app = CommandLine()


@app.command()
def demo(
    output: Output,
    orders: Annotated[int, typer.Option(metavar="N", min=3, max=10_000, help="How many orders are published.")] = 300,
    seed: Annotated[int, typer.Option(metavar="N", help="The same number plays the same story.")] = 1,
    report: Annotated[bool, typer.Option(help="Let Spark archive the journal and make a page of it.")] = True,
    into: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where the page goes; else a new temporary directory."),
    ] = None,
) -> int:
    """Play a story on a server of its own: duplicates, a killed consumer, a poison message, the balance, and a report.

    The exit status is 0 if the balance holds by every count, and 1 if it does not.
    """
    from redis_message_queue.cli.demo.story import tell

    directory = (into or Path(tempfile.mkdtemp(prefix="rmq-demo-"))).absolute() if report else None
    return tell(orders, seed, as_json=output.json, report_into=directory)
