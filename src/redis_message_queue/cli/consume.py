"""rmq consume: prints messages, or gives each one to a shell command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from redis_message_queue.cli.common_options import DeliveryOptions, QueueChoice
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.output import Output, say
from redis_message_queue.cli.stop_signals import StopSignals
from redis_message_queue.stored.bounds import MAX_MESSAGES
from redis_message_queue.values.errors import NotPermittedError
from redis_message_queue.values.plain_values import printable

if TYPE_CHECKING:
    from redis_message_queue import ReceivedMessage, RedisMessageQueue
    from redis_message_queue.sync.batch import Batch

_BATCH = 100
_FOLLOW_WAIT_SECONDS = 30.0  # --follow waits this long, again and again
_SIGNAL_CHECK_SECONDS = 0.1
_FIRST_LOOK_SECONDS = 0.001  # a program that reads has usually done so by then
_TERMINATION_SECONDS = 5.0  # between SIGTERM and SIGKILL for a shell command


def consume(
    queue: QueueChoice,
    output: Output,
    delivery: DeliveryOptions,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after this many messages.")
    ] = None,
    wait_seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the next message before stopping.")
    ] = 0.0,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for more until Ctrl-C or SIGTERM.")] = False,
    execute: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this shell command for each message, with the payload on its stdin, instead of printing it.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_MESSAGES,
            help="How many messages to claim and print at once.",
            show_default=f"{_BATCH}, or 1 into a pipe",
        ),
    ] = None,
) -> ExitStatus | None:
    """Take messages out of a queue and print them, until the queue is empty.

    Each payload is printed unchanged on a line of its own. With --json, each line is an object with the payload and
    what is known of the message. A message is acknowledged after it was printed; if printing fails, it is
    requeued. Into a pipe, it is acknowledged when the program at the other end has read it, so `rmq consume orders |
    head -1` takes one message out of the queue.

    With --exec, `sh` runs a command for each message, with the payload on its stdin. Exit status 0 acknowledges the
    message; any other status is a failure, see --max-attempts. The command's environment has RMQ_QUEUE,
    RMQ_MESSAGE_ID, RMQ_DELIVERY_COUNT, RMQ_PUBLISHED_AT and, if the message has a tenant, RMQ_TENANT. Ctrl-C or
    SIGTERM lets the running command finish. The same signal again ends it and requeues the message.

    The exit status is 1 if there was no message, or if one failed or went to the dead letters. If a queue gives out
    nothing because somebody has paused it, or its tenants, the command says so.
    """
    if follow and wait_seconds:
        raise typer.BadParameter("use one of them: --follow waits forever", param_hint="--wait-seconds, --follow")
    with StopSignals() as stop, queue.open(**delivery.queue_options(), interrupt=stop) as opened:
        if execute is None:
            printer = _Printer(queue.name, output, stop)
            handle: Callable[[Batch], int] = printer
            batch_size = batch_size or (1 if printer.is_piped else _BATCH)
        else:
            batch_size, handle = 1, _ShellCommand(queue.name, execute, output, stop)
        wait = None if follow else wait_seconds
        return _consume(opened, handle, stop, count=count, wait_seconds=wait, batch_size=batch_size)


class _Abandoned(Exception):
    """Raised inside a batch to requeue its unsettled messages."""


def _consume(
    queue: RedisMessageQueue,
    handle: Callable[[Batch], int],
    stop: StopSignals,
    *,
    count: int | None,
    wait_seconds: float | None,
    batch_size: int,
) -> ExitStatus:
    """Claim, handle and acknowledge until there is enough, nothing more, or a signal; None waits forever."""
    taken, failed, is_explained = 0, 0, False
    while not stop.is_interrupted() and (count is None or taken < count):
        wanted = batch_size if count is None else min(batch_size, count - taken)
        try:
            with queue.process_messages(
                wanted, wait_seconds=_FOLLOW_WAIT_SECONDS if wait_seconds is None else wait_seconds
            ) as batch:
                failed += batch._block.consumer.refused_at_claim  # its claim moved them to the dead letters
                if batch:
                    failed += handle(batch)
                    taken += len(batch)
                elif not queue._protocol.store.claimer.unconfirmed:  # else Redis was silent: that is not empty
                    is_explained = is_explained or _explain_pause(queue)
                    if wait_seconds is not None:
                        break
        except _Abandoned:
            return stop.status
    # A signal ends --follow; otherwise it means that the work is incomplete.
    if stop.is_interrupted() and wait_seconds is not None and taken != count:
        return stop.status
    nothing_came = taken == 0 and wait_seconds is not None
    return ExitStatus.FAILED if failed or nothing_came else ExitStatus.OK


def _explain_pause(queue: RedisMessageQueue) -> bool:
    """Say why nothing comes, if somebody has paused the queue or its tenants. Returns whether it did."""
    try:
        stats = queue.stats(oldest=False)
    except NotPermittedError:  # a user who may consume need not be allowed to count
        return True
    name = printable(queue.key.prefix)
    if stats.paused:
        say(f"{name} is paused: consumers claim nothing until somebody resumes it (rmq resume {name})")
    elif stats.paused_tenants and stats.pending:
        say(
            f"{name} has {stats.paused_tenants:,} paused tenants, and {stats.pending:,} messages wait: those of a "
            f"paused tenant are claimed when somebody resumes it (rmq tenants {name} shows which)"
        )
    return stats.paused or stats.paused_tenants > 0


@dataclass(frozen=True, slots=True)
class _Printer:
    """Prints messages. If that raises, their batch is requeued."""

    queue: str
    output: Output
    stop: StopSignals

    @property
    def is_piped(self) -> bool:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)

    def __call__(self, batch: Batch) -> int:
        for message in batch:
            if self.output.json:
                self.output.line(
                    {
                        "queue": self.queue,
                        "id": message.id,
                        "tenant": message.tenant,
                        "delivery_count": message.delivery_count,
                        "published_at": message.published_at,
                        "payload": message.payload,
                    }
                )
            elif sys.stdout.isatty():
                print(printable(message.payload))
            else:  # another program reads this: byte for byte
                sys.stdout.flush()
                sys.stdout.buffer.write(_payload_bytes(message) + b"\n")
        sys.stdout.flush()
        if self.is_piped:
            self._wait_for_reader()
        return 0

    def _wait_for_reader(self) -> None:
        """Wait until the other program has read everything. Raises if it ends first, or if we are stopped."""
        pipe, ended = sys.stdout.fileno(), select.poll()
        ended.register(pipe, 0)  # POLLERR is always reported: nobody reads any more
        seconds = _FIRST_LOOK_SECONDS
        while _unread_bytes(pipe):
            if ended.poll(1000 * seconds) and _unread_bytes(pipe):  # it may have read the last of it before it ended
                raise BrokenPipeError
            if self.stop.is_interrupted():
                raise _Abandoned
            seconds = min(2 * seconds, _SIGNAL_CHECK_SECONDS)


def _unread_bytes(pipe: int) -> int:
    """How much of what was written to a pipe is still in it; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


class CommandExitedError(Exception):
    """The shell command ended with a status other than 0."""


@dataclass(frozen=True, slots=True)
class _ShellCommand:
    """Runs a shell command for each message, and returns how many failed."""

    queue: str
    command: str
    output: Output
    stop: StopSignals

    def __call__(self, batch: Batch) -> int:
        failed = 0
        for message in batch:
            status = self._run(message)
            if status != 0:
                failed += 1
                batch.fail(message, CommandExitedError(f"exit status {status}"))
            if self.output.json:
                outcome = "acked" if status == 0 else "failed"
                self.output.line({"id": message.id, "outcome": outcome, "exit_status": status})
        return failed

    def _run(self, message: ReceivedMessage) -> int:
        """Run it, and return its exit status as a shell does: 128 plus the number of a signal."""
        with subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if self.output.json else None,  # stdout is for our JSON alone
            env=os.environ | self._environment(message),
            process_group=0,  # so that Ctrl-C in the terminal reaches us and not the command
        ) as process:
            try:
                self._wait(process, _payload_bytes(message))
            except BaseException:
                _signal(process, signal.SIGKILL)
                raise
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _wait(self, process: subprocess.Popen[bytes], payload: bytes) -> None:
        given: bytes | None = payload  # only once: communicate() goes on sending it after a timeout
        announced = False
        while self.stop.times < 2:
            try:
                process.communicate(given, timeout=_SIGNAL_CHECK_SECONDS)
                return
            except subprocess.TimeoutExpired:
                given = None
            if self.stop.is_interrupted() and not announced:
                announced = True
                say("stopping when the running command has finished; send the signal again to stop now")
        say("stopping now: the command is terminated and its message is requeued")
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATION_SECONDS)
        raise _Abandoned

    def _environment(self, message: ReceivedMessage) -> dict[str, str]:
        variables = {
            "RMQ_QUEUE": self.queue,
            "RMQ_MESSAGE_ID": message.id,
            "RMQ_DELIVERY_COUNT": str(message.delivery_count),
            "RMQ_PUBLISHED_AT": message.published_at.isoformat(),
        }
        if message.tenant is not None:
            variables["RMQ_TENANT"] = message.tenant.replace("\0", "\\x00")  # no environment can hold a NUL
        return variables


def _payload_bytes(message: ReceivedMessage) -> bytes:
    return message.payload if isinstance(message.payload, bytes) else message.payload.encode()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the shell and everything that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
