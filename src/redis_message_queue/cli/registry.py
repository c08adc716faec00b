"""The commands, each by the module that has it, imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

import typer.core
import typer.main

from redis_message_queue.cli.signature import CommandLine

# In the order of `rmq --help`. A module has an `app`, a CommandLine with one command, or with several for a group.
COMMANDS: dict[str, str] = {
    "publish": "redis_message_queue.cli.publish",
    "consume": "redis_message_queue.cli.consume",
    "worker": "redis_message_queue.cli.worker.command",
    "stats": "redis_message_queue.cli.stats.command",
    "peek": "redis_message_queue.cli.peek",
    "records": "redis_message_queue.cli.records",
    "redrive": "redis_message_queue.cli.redrive.command",
    "purge": "redis_message_queue.cli.purge",
    "tenants": "redis_message_queue.cli.tenants",
    "doctor": "redis_message_queue.cli.doctor.command",
    "bench": "redis_message_queue.cli.bench.command",
    "dev": "redis_message_queue.cli.dev",
    "demo": "redis_message_queue.cli.demo.command",
    "spark": "redis_message_queue.cli.spark.commands",
}


class Registry(typer.core.TyperGroup):
    """A group that knows the names of its commands and imports one when it is looked at."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.add_command(_load(cmd_name), cmd_name)
        return self.commands.get(cmd_name)


def _load(name: str) -> Any:
    app: CommandLine = importlib.import_module(COMMANDS[name]).app
    command = typer.main.get_command(app)
    command.name = name
    return command
