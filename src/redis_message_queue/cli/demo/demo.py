"""rmq demo: runs a scenario on a server of its own, prints what happens, and proves that nothing was lost."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output
from redis_message_queue.values.errors import MissingExtraError

if TYPE_CHECKING:
    from redis_message_queue.cli.demo.scenario import Say
    from redis_message_queue.spark.jobs.job import JobProgress
    from redis_message_queue.spark.jobs.report import ReportResult


def demo(
    output: Output,
    orders: Annotated[int, typer.Option(metavar="N", min=3, max=10_000, help="How many orders to publish.")] = 300,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed causes the same trouble.")] = 1,
    report: Annotated[bool, typer.Option(help="Archive the journal with Spark and make a report of it.")] = True,
    into: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to write the report.", show_default="a temporary directory"
        ),
    ] = None,
    before_report: Annotated[
        str | None, typer.Option(metavar="COMMAND", hidden=True, help="A command that installs Spark for the report.")
    ] = None,
) -> ExitStatus:
    """Watch a queue survive duplicates, a killed consumer and a poison message, on a server of its own.

    At the end the demo compares what was published with what was processed. If pyspark is installed, Spark makes a
    report from the queue's journal. The exit status is 0 if the numbers agree, and 1 if they do not.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from redis_message_queue.cli.demo import scenario
    from redis_message_queue.embedded import EmbeddedRedis

    screen = _Screen(output)
    show, say, console = screen.show, screen.say, screen.console
    with EmbeddedRedis() as server:
        say(f"a private {server.flavour} {'.'.join(map(str, server.version))} listens on port {server.port}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("orders settled", total=orders)
            plan = scenario.Scenario.create(server.url, orders, seed)
            balance = scenario.run(plan, say, lambda settled: bar.update(task, completed=settled))
        complaints = balance.complaints()
        if not output.json:
            show()
            output.table(balance.rows(), title="The balance")
            show()
        if complaints:
            show((f"The balance does not hold: {'; '.join(complaints)}", "bold red"))
        else:
            show(("The balance holds: nothing was lost and nothing was done twice.", "bold green"))
        if report and before_report is not None:
            subprocess.run(shlex.split(before_report), check=False)  # without Spark, make_report says what is missing
            importlib.invalidate_caches()  # of directories that had no pyspark a minute ago
        made = make_report(server.url, into, say) if report else None
    if made is not None:
        if made.verdict == "balanced":
            show(("The journal agrees: every message is accounted for.", "bold green"))
        else:
            complaints.append(f"the report is {made.verdict}: {made.because}")
            show((complaints[-1], "bold red"))
        show(f"Open the report: {made.page}")
    if output.json:
        summary = made and {"entries": made.entries, "verdict": made.verdict, "page": made.page}
        output.line(balance.to_dict() | {"complaints": complaints, "report": summary})
    return ExitStatus.FAILED if complaints else ExitStatus.OK


class _Screen:
    """Where the demo says what happens; nowhere if a script wants JSON."""

    def __init__(self, output: Output) -> None:
        from rich.console import Console

        self.console, self._quiet, self._begun = (
            Console(quiet=output.json, soft_wrap=True),
            output.json,
            time.monotonic(),
        )

    def show(self, *parts: str | tuple[str, str]) -> None:
        from rich.text import Text

        if self.console.is_terminal:
            self.console.print(Text.assemble(*parts))
        elif not self._quiet:  # rich exits with a status of its own if nobody reads the pipe any more
            print(Text.assemble(*parts).plain, flush=True)

    def say(self, text: str, style: str = "") -> None:
        self.show((f"{time.monotonic() - self._begun:4.1f} s", "dim"), "  ", (text, style))


def make_report(url: str, into: Path | None, say: Say) -> ReportResult | None:
    """Archive the journal as a Delta table and make a page of it with Spark; None if Spark is not installed."""
    try:
        from redis_message_queue.spark import session
        from redis_message_queue.spark.driver import QUICK_START
        from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
        from redis_message_queue.spark.jobs.report import ReportOptions, report
    except MissingExtraError:
        say("install Spark to get a report of this run: pip install 'redis-exact-queue[spark]'")
        return None

    def show_step(progress: JobProgress) -> None:
        say(f"  {progress}", "dim")

    say("Spark is starting on this machine, which takes some seconds")
    spark = session("rmq demo", "local[2]", **QUICK_START)
    directory = (into or Path(tempfile.mkdtemp(prefix="rmq-demo-"))).absolute()
    path, output = str(directory / "archive"), str(directory / "report")
    try:
        say("Spark archives the journal, in which the queue's scripts recorded every change")
        archived = archive(spark, ArchiveOptions(url=url, queue="orders", path=path), show_step)
        say(f"{archived.rows:,} entries are archived; the report is made from them")
        return report(spark, ReportOptions(path=path, queue="orders", output=output), show_step)
    finally:
        spark.stop()
