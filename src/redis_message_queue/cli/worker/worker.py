"""rmq worker: calls a function of yours with each message, in as many processes as you want."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from redis_message_queue.cli.common_options import DeliveryOptions
from redis_message_queue.cli.exit_status import ExitStatus, ServerUnusableError
from redis_message_queue.cli.log_format import say_in
from redis_message_queue.cli.output import Output
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.cli.worker.worker_options import (
    LoopOptions,
    ProcessOptions,
    ServedQueues,
    WatchOptions,
    WorkerSettings,
)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 10.0
_SIGNAL_CHECK_SECONDS = 0.1


def worker(
    queues: ServedQueues,
    output: Output,
    delivery: DeliveryOptions,
    loop: LoopOptions,
    process: ProcessOptions,
    watch: WatchOptions,
    queue_object: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="OBJECT",
            help="package.module:queue, a queue object or a function that returns one. Its own options apply.",
        ),
    ] = None,
) -> ExitStatus | None:
    """Call a function of yours with each message of one or several queues, until SIGTERM or Ctrl-C.

    `rmq worker shop.mails:send mails --processes 4` imports `send` from shop/mails.py, in this directory or in
    PYTHONPATH, and calls it with a ReceivedMessage. If it returns, the message is acknowledged. If it raises, the
    message has failed, see --max-attempts, unless it raises RetryLater, Discard or DeadLetter. A process that dies is
    restarted, after a growing delay.

    `rmq worker shop.mails:send urgent=3 bulk` serves two queues. While both have messages, three of four handlers that
    start are for `urgent`. A queue without messages leaves its share to the others. With `rmq worker orders=shop:charge
    mails=shop:send=3`, each queue has a handler of its own. `rmq worker shop:tasks` runs the tasks of a Tasks object.

    The first SIGTERM or Ctrl-C lets the handlers finish, requeues prefetched messages, and ends with exit status 0.
    The same signal again stops at once: messages that are being handled are delivered again when their lease ends.

    With --until-empty, the exit status is 0 if every message was handled, discarded or waits for its next attempt. It
    is 1 if a message failed for good or became a dead letter, also without a handler, or if a process ended in the
    middle of a message, because its handler called sys.exit, raised KeyboardInterrupt or crashed: then that message is
    still in flight.
    """
    from redis_message_queue.cli.worker.supervisor import Supervisor

    settings = WorkerSettings.create(queues, queue_object, delivery, loop, process, watch)
    with StopSignals() as stop:
        if not _reach_server(settings, stop, waits=process.wait):
            return ExitStatus.OK
        supervisor = Supervisor(settings, process, watch, stop, quiet=output.json)
        status = supervisor.run()
    if status != ExitStatus.USAGE:
        _print_totals(output, supervisor.totals)
    return status


def _reach_server(settings: WorkerSettings, stop: StopSignals, *, waits: bool) -> bool:
    """Check the options and the server before any process starts. Returns False if a signal ends the wait for it."""
    pause = _FIRST_PAUSE_SECONDS
    for choice in settings.queues:
        while not stop.is_interrupted():
            try:
                with choice.open(**settings.delivery.queue_options()):
                    break
            except ServerUnusableError as error:
                if error.is_final or not waits:
                    raise
                text = f"rmq worker: {error}; trying again in {pause:g} s"
                say_in(settings.log_format, text, level="warning", address=settings.address)
            due = time.monotonic() + pause
            while not stop.is_interrupted() and time.monotonic() < due:
                time.sleep(_SIGNAL_CHECK_SECONDS)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return not stop.is_interrupted()


def _print_totals(output: Output, totals: dict[str, dict[str, int]]) -> None:
    """Print what was done: of each queue if there are several, and in all."""
    in_all = {name: sum(one[name] for one in totals.values()) for name in next(iter(totals.values()))}
    if len(totals) == 1:
        output.document(in_all)
    elif output.json:
        output.document(in_all | {"queues": totals})
    else:
        rows = [{"queue": queue} | counts for queue, counts in totals.items()]
        output.table([*rows, {"queue": "in all"} | in_all])
