"""A command of the user's for each message: its stdin is the payload, its exit status the outcome."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis_message_queue.cli.consuming import GivenBack
from redis_message_queue.cli.output import Output, say
from redis_message_queue.cli.stopping import StopSignals

if TYPE_CHECKING:
    from redis_message_queue import ReceivedMessage
    from redis_message_queue.sync.batch import Batch

_LOOK_SECONDS = 0.1
_LAST_SECONDS = 5.0  # for a command that was told to end


class CommandExitedError(Exception):
    """The command ended with another status than 0."""


@dataclass(frozen=True, slots=True)
class Executor:
    """Runs the command for one message after the other."""

    queue: str
    command: str
    output: Output
    stop: StopSignals

    def take(self, batch: Batch) -> int:
        failed = 0
        for message in batch:
            status = self._run(message)
            if status != 0:
                failed += 1
                batch.fail(message, CommandExitedError(f"exit status {status}"))
            self._tell(message, status)
        return failed

    def _run(self, message: ReceivedMessage) -> int:
        """Its exit status as a shell would say it, 128 and more for a signal."""
        payload = message.payload if isinstance(message.payload, bytes) else message.payload.encode()
        with subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if self.output.json else None,  # stdout is for our JSON alone
            env=os.environ | self._environment(message),
            process_group=0,  # Ctrl-C in the terminal is for us, and the command finishes
        ) as process:
            try:
                self._wait(process, payload)
            except BaseException:
                _signal(process, signal.SIGKILL)
                raise
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    def _wait(self, process: subprocess.Popen[bytes], payload: bytes) -> None:
        given: bytes | None = payload  # once: a wait that goes on goes on sending it
        told = False
        while self.stop.times < 2:
            try:
                process.communicate(given, timeout=_LOOK_SECONDS)
                return
            except subprocess.TimeoutExpired:
                given = None
            if self.stop.is_interrupted() and not told:
                told = True
                say("stopping when the command at hand has finished; the same signal again ends it")
        say("the command at hand is ended, and its message goes back")
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_SECONDS)
        raise GivenBack

    def _environment(self, message: ReceivedMessage) -> dict[str, str]:
        facts = {
            "RMQ_QUEUE": self.queue,
            "RMQ_MESSAGE_ID": message.id,
            "RMQ_DELIVERY_COUNT": str(message.delivery_count),
            "RMQ_PUBLISHED_AT": message.published_at.isoformat(),
        }
        if message.tenant is not None:
            facts["RMQ_TENANT"] = message.tenant.replace("\0", "\\x00")  # no environment can carry the NUL itself
        return facts

    def _tell(self, message: ReceivedMessage, status: int) -> None:
        if self.output.json:
            outcome = "acked" if status == 0 else "failed"
            self.output.line({"id": message.id, "outcome": outcome, "exit_status": status})
        elif status != 0:
            say(f"message {message.id}, delivery {message.delivery_count}: the command ended with status {status}")


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the shell and to what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
