"""Takes a picture of `rmq stats --watch` at work, on a server of its own: python -m docs.pictures."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from fcntl import ioctl
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis

PICTURE = Path(__file__).parent / "how-to" / "stats-watch.svg"
_COLUMNS, _ROWS = 110, 16
_COMMAND = "rmq stats orders mails --watch --every 0.2"
# Rich moves the cursor up before it draws the next frame.
_NEXT_FRAME = re.compile(r"(?:\r?\x1b\[(?:2K|1A))+")
# Rich's own format loads a font from elsewhere.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    """Write the picture. It shows real figures, so each one is different."""
    with EmbeddedRedis(password=False) as server:
        shown = frames_of(server)
    PICTURE.write_text(draw(shown), encoding="utf-8")
    print(f"docs/how-to/{PICTURE.name} written")


def frames_of(server: EmbeddedRedis) -> str:
    """The last frame of the command, while orders come faster than they are handled and mails are handled at once."""
    stop = threading.Event()
    traffic = threading.Thread(target=make_traffic, args=(server, stop))
    traffic.start()
    try:
        return last_frame(server.url)
    finally:
        stop.set()
        traffic.join()


def make_traffic(server: EmbeddedRedis, stop: threading.Event) -> None:
    logging.getLogger("redis_message_queue").setLevel(logging.CRITICAL)  # one order in forty fails on purpose
    with server.client(decode_responses=True) as client:
        orders, mails = (
            RedisMessageQueue(name, client=client, message_wait_interval_seconds=0) for name in ("orders", "mails")
        )
        number = 0
        while not stop.wait(0.02):
            number += 1
            orders.publish_many([f"order {number}-{part}" for part in range(1 + number % 7)])
            mails.publish(f"mail {number}")
            with orders.process_messages(3) as batch:
                if number % 40 == 0 and len(batch):
                    batch.fail(batch[0], ValueError("no such customer"))
            with mails.process_message():
                pass


def last_frame(url: str) -> str:
    terminal, other_end = pty.openpty()
    ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    program = [sys.executable, "-m", "redis_message_queue", *_COMMAND.replace("--watch", "--count 30").split()[1:]]
    environment = os.environ | {"REDIS_URL": url, "TERM": "xterm-256color"}
    with subprocess.Popen(program, env=environment, stdin=other_end, stdout=other_end, stderr=other_end) as running:
        os.close(other_end)
        text = read_all(terminal)
    if running.returncode:
        raise SystemExit(f"{_COMMAND} ended with {running.returncode}: {text}")
    return next(frame for frame in reversed(_NEXT_FRAME.split(text)) if "orders" in frame)


def read_all(terminal: int) -> str:
    """Everything that a program writes, until it closes its terminal."""
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:
        pass  # Linux says so when the other end is closed
    finally:
        os.close(terminal)
    return b"".join(parts).decode(errors="replace")


def draw(frame: str) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {_COMMAND}"))
    console.print(Text.from_ansi(re.sub(r"\x1b\[\?25[hl]", "", frame).replace("\r\n", "\n").strip("\n")))
    svg = console.export_svg(title="rmq stats", theme=MONOKAI, unique_id="stats")
    return _FONTS.sub("", svg).replace("Fira Code, monospace", "ui-monospace, monospace")


if __name__ == "__main__":
    main()
