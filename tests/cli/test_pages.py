"""The pages about the command line say what it does."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.reference.cli import cli_page, commands
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.cli.program import COMMANDS
from tests import fork_server
from tests.cli.conftest import Ended
from tests.docs.pages import DOCS, blocks_of

pytestmark = pytest.mark.topic("Command line")


WITHOUT_A_SHELL = re.compile(r"rmq ([^|&;<>$`*?~\\\n]*)\n")
# With the fewest commands that each page shows.
SHELL_PAGES = {
    "work-from-the-shell.md": 9,
    "operate.md": 9,
    "troubleshoot.md": 9,
    "check-a-server.md": 1,
    "run-workers.md": 3,
}


@pytest.mark.promise("The reference lists every command and option of `rmq` and is generated from the program.")
def test_every_command_option_and_status_is_in_the_reference() -> None:
    """If the first line fails: python -m docs.generate."""
    page = cli_page()
    assert (DOCS / "reference" / "cli.md").read_text(encoding="utf-8") == page
    assert {path.split()[1] for path, _ in commands()} == COMMANDS.keys()
    for path, command in commands():
        _, _, rest = page.partition(f"\n## {path}\n")
        section = rest.partition("\n## ")[0]
        assert section
        for parameter in command.params:
            if getattr(parameter, "hidden", False) or parameter.name == "help_all":  # one is for the Makefile alone
                continue
            assert all(option in section for option in parameter.opts if option.startswith("--")), parameter.name
            assert parameter.help, f"{path}: {parameter.name} has no words"
    assert all(f"| `{int(one)}` |" in page for one in ExitStatus)


def sessions(page: Path) -> list[tuple[str, str]]:
    """The commands of a page's console blocks, and what the page says they print."""
    text = "".join(block.code for block in blocks_of(page, "console"))
    found = re.findall(r"^\$ (.*\n(?:> .*\n)*)((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
    return [(re.sub(r"^> ", "", command, flags=re.MULTILINE), said) for command, said in found]


INSTALLED = Path(sys.executable).parent


def in_a_shell(command: str, *programs: Path) -> Ended:
    """Run a command as the page's reader does, with the programs of these directories."""
    path = os.pathsep.join([*map(str, programs), str(INSTALLED), os.environ["PATH"]])
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return Ended(ended.returncode, ended.stdout, "")


@pytest.mark.timeout(900)  # it starts a program for each of a dozen commands
@pytest.mark.parametrize("name", SHELL_PAGES)
def test_the_commands_of_the_page_print_what_it_says(name, rmq, tmp_path, monkeypatch) -> None:
    """One after the other, in one directory; those that need no shell in this process, the others forked."""
    page = DOCS / "how-to" / name
    assert len(sessions(page)) >= SHELL_PAGES[name]
    programs, here = tmp_path / "programs", tmp_path / "here"
    programs.mkdir()
    here.mkdir()
    fork_server.write_starter(programs / "rmq", "redis_message_queue")
    monkeypatch.setattr(subprocess, "Popen", fork_server.Program)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    for command, said in sessions(page):
        plain = WITHOUT_A_SHELL.fullmatch(command)
        ended = rmq(*shlex.split(plain[1])) if plain else in_a_shell(command, programs)
        assert ended.status == 0, f"{command}\n{ended}"
        assert re.fullmatch(".*".join(map(re.escape, said.split("…"))), ended.out + ended.err), f"{command}\n{ended}"


def test_a_console_session_is_read_as_people_read_it(tmp_path: Path) -> None:
    """A line after > belongs to the command above it."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ cat <<E\n> x\n> E\nx\n$ true\n```\n")
    assert sessions(page) == [("cat <<E\nx\nE\n", "x\n"), ("true\n", "")]
