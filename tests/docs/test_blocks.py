"""Every Python block in the README and in docs/ runs on a real server and prints what it says."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections import defaultdict
from pathlib import Path

import pytest
import redis

from redis_message_queue.embedded import EmbeddedRedis
from tests import fork_server
from tests.docs.pages import DOCS, ROOT, Block, blocks_of, keeps, name_of, pages, programs_of
from tests.fork_server import Program

PROGRAM = Path(__file__).with_name("program.py")
# The address that the pages use for "your server".
READERS_URL = "redis://localhost:6379/0"
LONGEST_SECONDS = 120

PAGES_THAT_RUN = {name_of(page): page for page in pages() if blocks_of(page)}
IN_USE = ("*pending", "*processing")


@pytest.mark.parametrize("name", PAGES_THAT_RUN)
def test_the_blocks_of_a_page_run_and_print_what_they_say(
    name: str, clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path
) -> None:
    """In order, in one directory, with warnings as errors; SIGTERM stops a consumer that never ends."""
    page = PAGES_THAT_RUN[name]
    save_files(page, tmp_path, clean_server.url)
    for number, program in enumerate(programs_of(page)):
        said = run(program, number, clean_server.url, client, tmp_path)
        for block in program:
            for line, promise in block.promises.items():
                assert keeps(promise, said[line]), f"{name}:{line} promises {promise!r}, and printed {said[line]}"
    run_tests(tmp_path)


def save_files(page: Path, directory: Path, url: str) -> None:
    """A block whose first line is a file name is for the reader to save."""
    for block in blocks_of(page):
        if block.file is not None:
            path = directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code.replace(READERS_URL, url), encoding="utf-8")


Said = defaultdict[int, list[str]]


def run(program: list[Block], number: int, url: str, client: redis.Redis, directory: Path) -> Said:
    """Run a program that must succeed. Returns its output by the line of the page."""
    plan, notes = directory / f"plan-{number}.json", directory / f"notes-{number}"
    plan.write_text(json.dumps([planned(block, url) for block in program]), encoding="utf-8")
    notes.touch()
    first, waiting = program[0], sum(client.llen(key) for key in client.keys("*pending"))
    with Program(
        [sys.executable, str(PROGRAM), str(plan), str(notes)],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            if first.never_ends:
                stop_when_idle(running, notes, client)
            output, complaints = running.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            pytest.fail(f"{first.place} does not end\n{''.join(running.communicate())}")
        finally:
            running.kill()
    assert running.returncode == 0, f"{first.place} ended with {running.returncode}\n{output}\n{complaints}"
    said = what_was_said(notes)
    if first.never_ends:
        assert sum(map(len, said.values())) >= waiting, f"{first.place} printed nothing"
    return said


def planned(block: Block, url: str) -> dict[str, str | int]:
    return {"page": str(block.page), "line": block.line, "code": block.code.replace(READERS_URL, url)}


def what_was_said(notes: Path) -> Said:
    said: Said = defaultdict(list)
    for line, text in map(json.loads, notes.read_text(encoding="utf-8").splitlines()):
        said[line].append(text)
    return said


def environment() -> dict[str, str]:
    """Warnings are errors, also in the programs that a page starts."""
    return os.environ | {"PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}


def stop_when_idle(running: "subprocess.Popen[str]", notes: Path, client: redis.Redis) -> None:
    """Send SIGTERM to a consumer that has printed something, once nothing waits or is in flight."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not notes.stat().st_size or any(client.keys(pattern) for pattern in IN_USE):
        if running.poll() is not None or time.monotonic() > deadline:
            raise subprocess.TimeoutExpired("the consumer", LONGEST_SECONDS)
        time.sleep(0.01)
    running.send_signal(signal.SIGTERM)


def run_tests(directory: Path) -> None:
    """Run tests that a page lets the reader save, as the reader does."""
    if list(directory.glob("test_*.py")):
        # Without plugins of our own environment, which the reader does not have and which take two seconds to load.
        ours = ("cacheprovider", "hypothesispytest", "timeout", "valkey", "anyio", "platformdirs", "xdist")
        without = [word for name in ours for word in ("-p", f"no:{name}")]
        # A forked process has imported too much to rewrite assertions.
        command = [sys.executable, "-m", "pytest", "-q", "--assert=plain", *without, "--rootdir", str(directory)]
        ended = fork_server.run(command, cwd=directory, env=environment())
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_saved_file_is_used_by_its_page() -> None:
    """Otherwise the block would never run. tests/docs/test_recipes.py runs the programs of the recipes."""
    for page in pages():
        if page.parent.name == "recipes":
            continue
        for block in blocks_of(page):
            if block.file is not None and block.not_run is None and not block.file.startswith(("test_", "conftest")):
                later = [other.code for other in blocks_of(page) if other.line > block.line and other.file is None]
                assert any(block.file in code for code in later), f"{block.place} saves a file that is never run"


def test_few_blocks_are_skipped_and_each_says_why() -> None:
    """Those with a Spark session or another library. Each names the test that runs it."""
    left_out = {block.place: block.not_run or "" for page in pages() for block in blocks_of(page) if block.not_run}
    runs_it = {place: re.search(r"tests/[\w/]+(\.py)?", why) for place, why in left_out.items()}
    assert [place for place, named in runs_it.items() if named is None or not (ROOT / named[0]).exists()] == []
    assert len(left_out) <= 8


def test_no_block_is_in_an_indented_list() -> None:
    """Its code would be indented too, and would not run."""
    assert [block.place for page in pages() for block in blocks_of(page) if block.indented] == []


def test_the_tutorial_can_be_pasted_into_a_prompt(tmp_path: Path) -> None:
    """Block by block into a real terminal, as its page says. The next paste begins where the last one ended."""
    page = DOCS / "tutorial" / "first-queue.md"
    save_files(page, tmp_path, READERS_URL)
    blocks = [block for block in blocks_of(page) if block.file is None]
    with Prompt(tmp_path) as prompt:
        for number, block in enumerate(blocks):
            prompt.paste(block.code)
            # It is the beginning of the next paste: after an indented line, it would belong to that line's block.
            shown = prompt.answer_to(f'print("pasted", {number})', f"pasted {number}")
            assert not REFUSED.search(shown), f"{block.place}: {shown}"
            for promise in block.promises.values():
                assert promise.partition(": ")[0].partition(", ")[0] in shown, f"{block.place}: {shown}"


# The log of a failed message has a traceback, too, below its line.
REFUSED = re.compile(r"SyntaxError|IndentationError|(?<!\(failed\)\r\n)Traceback")


class Prompt:
    """Python's prompt in a terminal. The prompt of Python 3.11 and 3.12 reads line by line; newer ones have it too."""

    def __init__(self, directory: Path) -> None:
        self._terminal, other_end = pty.openpty()
        # No echo: what comes back is what Python says.
        settings = termios.tcgetattr(other_end)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(other_end, termios.TCSANOW, settings)
        self._python = subprocess.Popen(
            [sys.executable, "-i", "-q", "-c", "import sys; sys.ps1 = sys.ps2 = ''"],
            cwd=directory,
            env=environment() | {"PYTHON_BASIC_REPL": "1", "TERM": "dumb", "PYTHONSTARTUP": ""},
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            start_new_session=True,
        )
        os.close(other_end)

    def __enter__(self) -> "Prompt":
        return self

    def __exit__(self, *_: object) -> None:
        self._python.kill()
        self._python.wait()
        os.close(self._terminal)

    def paste(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def answer_to(self, line: str, answer: str) -> str:
        """Paste a line. Returns everything that was shown until its answer came."""
        self.paste(line + "\n")
        shown, deadline = "", time.monotonic() + LONGEST_SECONDS
        while f"{answer}\r\n" not in shown and not REFUSED.search(shown):
            assert time.monotonic() < deadline, f"no {answer!r} in {shown}"
            if select.select([self._terminal], [], [], 1)[0]:
                shown += os.read(self._terminal, 65536).decode()
        return shown


@pytest.mark.parametrize(
    ("promise", "said", "kept"),
    [
        ("True", ["True"], True),
        ("False: the same message within the hour", ["False"], True),
        ("False: the same message", ["True"], False),
        ("working on …: done", ["working on order 1: done"], True),
        ("1, 2", ["1", "2"], True),
        ("1, 2", ["1"], False),
        ("True", [], False),
    ],
)
def test_a_promise_must_match_the_output(promise: str, said: list[str], kept: bool) -> None:
    """Exactly, apart from an explanation after a colon and from unpredictable parts."""
    assert keeps(promise, said) == kept


def test_the_pages_name_no_other_server() -> None:
    """A block with another address would not run on the test server."""
    for page in pages():
        for block in blocks_of(page):
            assert "redis://" not in block.code.replace(READERS_URL, ""), block.place
    assert ROOT.joinpath("README.md").read_text(encoding="utf-8").count(READERS_URL) > 0
