"""Takes the pictures of the documentation, each on a server of its own: python -m docs.pictures [NAME...].

The pictures of the dashboard and the report need Chromium; the report needs the extra `spark`, too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import redis
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from redis_message_queue import RedisMessageQueue, RetryLater
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.testing.fast_forward import fast_forward

PICTURES = Path(__file__).parent / "how-to"
_COLUMNS, _ROWS = 110, 16
_COMMAND = "rmq stats orders mails --watch --every 0.2"
# Rich moves the cursor up before it draws the next frame.
_NEXT_FRAME = re.compile(r"(?:\r?\x1b\[(?:2K|1A))+")
# Rich's own format loads a font from elsewhere.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_WATCHED_SECONDS, _REPORTED_SECONDS = 60.0, 45.0  # how much a chart shows
_CHROMIUM = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
_ADDRESS = re.compile(r"http://\S+")


def main() -> None:
    """Write the pictures. They show real figures, so each time they are different."""
    takers = {"stats": take_stats, "dashboard": take_dashboard, "report": take_report}
    parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
    parser.add_argument("pictures", nargs="*", choices=[*takers, []], help="all of them without a name")
    logging.getLogger("redis_message_queue").setLevel(logging.CRITICAL)  # what fails here fails on purpose
    for name in parser.parse_args().pictures or takers:
        with EmbeddedRedis(password=False) as server:
            takers[name](server)


def take_stats(server: EmbeddedRedis) -> None:
    """Take the last frame of `rmq stats --watch`."""
    with traffic(server):
        frame = last_frame(server.url)
    save("stats-watch.svg", draw(frame).encode())


def take_dashboard(server: EmbeddedRedis) -> None:
    """Take the pages of the dashboard that a person on call sees, one after the other."""
    with server.client(decode_responses=True) as client:
        letter = make_trouble(client)
    with traffic(server), dashboard(server.url) as url:
        ends_at = time.monotonic() + _WATCHED_SECONDS
        while time.monotonic() < ends_at:  # the chart shows what somebody has watched
            with urllib.request.urlopen(f"{url}queue?name=orders") as page:
                page.read()
            time.sleep(2)
        photograph(f"{url}", "dashboard.webp", 640)
        photograph(f"{url}queue?name=orders", "dashboard-queue.webp", 1000)
        photograph(f"{url}message?name=payments&source=dead_letters&id={letter}", "dashboard-message.webp", 800)


def take_report(server: EmbeddedRedis) -> None:
    """Take the first screen of a report."""
    from redis_message_queue.spark import session
    from redis_message_queue.spark.driver import QUICK_START
    from redis_message_queue.spark.jobs.archive import ArchiveOptions, archive
    from redis_message_queue.spark.jobs.report import ReportOptions, report

    with traffic(server):
        time.sleep(_REPORTED_SECONDS)
    with tempfile.TemporaryDirectory() as directory:
        spark = session("picture", "local[2]", **QUICK_START)
        archive(spark, ArchiveOptions(url=server.url, queue="orders", path=f"{directory}/archive"))
        made = report(spark, ReportOptions(path=f"{directory}/archive", queue="orders", output=f"{directory}/report"))
        photograph(Path(made.page).as_uri(), "report.webp", 930, width=1100)
        spark.stop()


@contextlib.contextmanager
def traffic(server: EmbeddedRedis) -> Iterator[None]:
    """Let orders come a little faster than they are handled, and mails be handled at once."""
    stop = threading.Event()
    thread = threading.Thread(target=make_traffic, args=(server, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def make_traffic(server: EmbeddedRedis, stop: threading.Event) -> None:
    with server.client(decode_responses=True) as client:
        orders = RedisMessageQueue("orders", client=client, message_wait_interval_seconds=0, journal=True)
        mails = RedisMessageQueue("mails", client=client, message_wait_interval_seconds=0)
        number = 0
        while not stop.wait(0.02):
            number += 1
            tenant = ("acme", "bolt", "café")[number % 7 % 3]
            orders.publish_many([f"order {number}-{part}" for part in range(1 + number % 7)], tenant=tenant)
            mails.publish(f"mail {number}")
            with orders.process_messages(5 if number % 400 > 200 else 3) as batch:
                if number % 40 == 0 and len(batch):
                    batch.fail(batch[0], ValueError("no such customer"))
                stop.wait(0.01)
            with mails.process_message():
                pass


def make_trouble(client: redis.Redis) -> str:
    """Leave a queue whose consumer died, and one with a dead letter that has a past. Returns the id of that."""
    thumbnails = RedisMessageQueue("thumbnails", client=client)
    thumbnails.publish_many([f"image {number}" for number in range(40)])
    with contextlib.suppress(KeyboardInterrupt), thumbnails.process_messages(3):
        raise KeyboardInterrupt
    fast_forward(client, 12 * 60, thumbnails)

    payments = RedisMessageQueue("payments", client=client, journal=True, message_wait_interval_seconds=0)
    letter = payments.submit({"payment": 4711, "customer": "Ada", "amount": "12.50"}, tenant="acme").id
    with contextlib.suppress(KeyboardInterrupt), payments.process_messages(1):
        time.sleep(1.5)
        raise KeyboardInterrupt
    fast_forward(client, 301, payments)
    time.sleep(3)
    with payments.process_message():
        time.sleep(0.3)
        raise RetryLater(2) from TimeoutError("the bank does not answer")
    time.sleep(2.2)
    with payments.process_messages(1) as batch:
        time.sleep(0.2)
        batch.fail(batch[0], ValueError("no such customer"))
    return letter


@contextlib.contextmanager
def dashboard(url: str) -> Iterator[str]:
    """Run `rmq dashboard`, and return its address."""
    program = [sys.executable, "-m", "redis_message_queue", "dashboard", "--port", "0", "--allow-changes"]
    environment = os.environ | {"REDIS_URL": url}
    with subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            yield _ADDRESS.findall(running.stderr.readline())[0]
        finally:
            running.terminate()


def photograph(url: str, name: str, height: int, *, width: int = 1200) -> None:
    """Write what Chromium shows at an address."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is missing: `make browser` installs it")
    with tempfile.TemporaryDirectory() as directory:
        picture = Path(directory, name)
        command = [chromium, *_CHROMIUM, f"--user-data-dir={directory}/profile", f"--window-size={width},{height}"]
        subprocess.run([*command, f"--screenshot={picture}", url], check=True, capture_output=True, timeout=120)
        save(name, picture.read_bytes())


def save(name: str, content: bytes) -> None:
    (PICTURES / name).write_bytes(content)
    print(f"docs/how-to/{name}: {len(content) // 1024} kB")


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
