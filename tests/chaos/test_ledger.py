"""A ledger keeps what a process wrote before it was killed, and refuses to be read if a line is torn."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.ledger import Ledger, NoLedger, read_ledgers

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from chaos.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
ledger.intend("orders", ["a", "b"], d=None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_written_before_a_kill_is_read(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "producer-1.jsonl")], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    (entry,) = read_ledgers(tmp_path)
    assert {name: entry[name] for name in ("who", "do", "call", "queue", "keys", "d")} == {
        "who": "producer-1",
        "do": "intent",
        "call": 1,
        "queue": "orders",
        "keys": ["a", "b"],
        "d": None,
    }


def test_the_lines_of_all_processes_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "one.jsonl"), Ledger(tmp_path / "other.jsonl")
    one.write("handling", id="1")
    other.write("handling", id="2")
    one.write("handled", durable=False, id="1")
    for ledger in (one, other):
        ledger.close()
    entries = read_ledgers(tmp_path)
    assert [entry["t"] for entry in entries] == sorted(entry["t"] for entry in entries)
    assert sorted((entry["who"], entry["do"]) for entry in entries) == [
        ("one", "handled"),
        ("one", "handling"),
        ("other", "handling"),
    ]


def test_a_torn_line_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl").write_text('{"do":"intent","t":1}\n{"do":"conf')
    with pytest.raises(ValueError, match="the last line is torn"):
        read_ledgers(tmp_path)


def test_a_ledger_that_nobody_reads_writes_nothing(tmp_path: Path) -> None:
    before = os.listdir(tmp_path)
    ledger = NoLedger()
    assert [ledger.intend("orders", ["a"]), ledger.intend("orders", ["b"])] == [1, 2]
    ledger.close()
    assert os.listdir(tmp_path) == before
