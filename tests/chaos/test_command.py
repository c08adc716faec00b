"""`python -m chaos` prints its plan, and refuses what it does not know."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import fork_server

ROOT = Path(__file__).resolve().parents[2]


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run([sys.executable, "-W", "error", "-m", "chaos", *arguments], cwd=ROOT)


def test_a_plan_is_printed_and_is_the_same_for_the_same_seed() -> None:
    one, other = (chaos("--plan", "--seed", "7", "--minutes", "5") for _ in range(2))
    assert one.returncode == 0
    assert "restart" in one.stdout
    assert one.stdout == other.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--only", "plague"), "plague: choose from kill, stop"),
        (("--minutes", "0"), "0: give a number above 0"),
        (("--minutes", "soon"), "soon: give a number above 0"),
        (("page",), "--campaign FILE"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    refused = chaos(*arguments)
    assert refused.returncode != 0
    assert complaint in refused.stderr
