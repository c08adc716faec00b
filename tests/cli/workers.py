"""Modules with handlers for `rmq worker`, and what its processes say and do."""

import subprocess
from pathlib import Path

HANDLERS = """
import asyncio, os, pathlib, time

def note(message):
    with open("handled", "a") as file:
        file.write(f"{message.payload} {os.getpid()}\\n")

async def note_later(message):
    await asyncio.sleep(0)
    note(message)

def note_all(messages):
    for message in messages:
        note(message)

def slow(message):
    pathlib.Path("began").touch()
    while not os.path.exists("go"):
        time.sleep(0.02)
    note(message)

async def slow_later(message):
    pathlib.Path("began").touch()
    while not os.path.exists("go"):
        await asyncio.sleep(0.02)
    note(message)

def crash_once(message):
    if message.delivery_count == 1:
        os._exit(9)
    note(message)

def crash(message):
    os._exit(9)

def leave(message):
    note(message)
    if message.payload == "a":
        raise SystemExit(0)

async def leave_later(message):
    leave(message)

def interrupt(message):
    note(message)
    if message.payload == "a":
        raise KeyboardInterrupt

async def interrupt_later(message):
    interrupt(message)

def leave_all(messages):
    for message in messages:
        leave(message)

def postpone(message):
    from redis_message_queue import RetryLater
    raise RetryLater(3600)

def fail(message):
    raise ValueError("hunter2")

def note_command_line(message):
    import json, sys
    pathlib.Path("command").write_text(json.dumps(sys.orig_argv))

def note_queue(message):
    with open("handled", "a") as file:
        file.write(f"{message.queue} {os.getpid()}\\n")

async def note_queue_later(message):
    note_queue(message)

def takes_two(message, other):
    pass

def takes_none(*, message=None):
    pass

def yields(message):
    yield message
"""
QUEUES = """
import os, warnings
warnings.simplefilter("ignore", ResourceWarning)  # the clients are open until the process ends
import redis, redis.asyncio
import redis_message_queue, redis_message_queue.asyncio

url = os.environ["REDIS_URL"]
queue = redis_message_queue.RedisMessageQueue("orders", client=redis.Redis.from_url(url, decode_responses=True))

from redis_message_queue.tasks import AsyncTasks, Tasks

tasks = Tasks(queue)

@tasks.task
def note(payload):
    with open("handled", "a") as file:
        file.write(f"{payload} {os.getpid()}\\n")

def awaited():
    client = redis.asyncio.Redis.from_url(url, decode_responses=True)
    return redis_message_queue.asyncio.RedisMessageQueue("orders", client=client)

later = AsyncTasks(awaited())
later.task(note.function)
"""


def handled(directory: Path) -> list[str]:
    """The payloads that were handled, in any order."""
    path = directory / "handled"
    return sorted(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else []


def said(process: "subprocess.Popen[str]", start: str) -> str:
    """The next line on stderr that starts like this."""
    for line in process.stderr:
        if line.startswith(start):
            return line
    raise AssertionError(f"it never said {start!r}")


def finish(process: "subprocess.Popen[str]") -> tuple[str, str]:
    return process.communicate(timeout=120)
