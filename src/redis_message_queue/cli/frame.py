"""Everything a command needs of the program around it, to be imported from one place."""

from redis_message_queue.cli.as_json import to_json
from redis_message_queue.cli.choices import QueueChoice, ServerChoice
from redis_message_queue.cli.exit_status import CommandFailedError, ExitStatus, ServerUnusableError
from redis_message_queue.cli.output import Output, say
from redis_message_queue.cli.signature import CommandLine
from redis_message_queue.cli.table import printable

__all__ = [
    "CommandFailedError",
    "CommandLine",
    "ExitStatus",
    "Output",
    "QueueChoice",
    "ServerChoice",
    "ServerUnusableError",
    "printable",
    "say",
    "to_json",
]
