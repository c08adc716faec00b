"""Whatever somebody types after `rmq`: a documented exit status, one line about a mistake, no command to a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import typer.main
from hypothesis import assume, given
from hypothesis import strategies as st

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli import program
from redis_message_queue.cli.exit_status import ExitStatus
from tests.cli.test_odd_names import OF_RICH, obeyed
from tests.fuzz import snapshot, values
from tests.fuzz.effort import examples

QUEUE = "orders"
# These only read or change a queue, and return. The others run for long, start processes or execute what they are
# given: the real program parses and checks their arguments, and their functions are not called.
CALLED = ("publish", "consume", "stats", "peek", "records", "redrive", "purge", "tenants", "spark groups")
# Options that make a called command wait, watch or execute.
NOT_CALLED = {"--exec", "--follow", "--watch", "--every", "--count", "--wait-seconds", "--file", "-w", "-F", "-f"}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the real program with its parameters, so that new ones are covered by themselves."""
    group: Any = typer.main.get_command(program.app)

    def below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        if getattr(command, "commands", None):
            for name, inner in command.commands.items():
                yield from below(f"{path} {name}", inner)
        else:
            yield path, command

    for name in program.COMMANDS:
        yield from below(name, group.get_command(None, name))


ALL = dict(commands())


def as_argument(text: str) -> str:
    """What a shell can pass: no null character, and lone surrogates only for bytes that are not UTF-8."""
    return re.sub("[\0\ud800-\udc7f\udd00-\udfff]", "", text)


words = st.one_of(
    values.texts.map(as_argument),
    st.sampled_from(
        ["-1", "0", "1", "2", "1e999", "nan", "inf", "9" * 30, "9" * 5000, "1.5", "-", "--", "True", "null"]
    ),
    st.sampled_from(["pending", "dead_letters", "failed", "completed", "processing", "delayed", "orphans", QUEUE]),
    st.sampled_from(["2030-01-01T00:00:00Z", "tomorrow", "9999-12-31T23:59:59+00:00", "0001-01-01", "{", "{}", "[[]"]),
    st.sampled_from(
        ["tenant == 'acme'", "error", "json['a'] >", "__import__('os')", "(" * 300, "0x" + "f" * 5000, "1j"]
    ),
    st.sampled_from(
        ["redis://\x1b[31m@localhost:1", "redis://localhost:1/0?a=b", "redis://[::1", "unix:///nowhere", "x" * 9_000]
    ),
)


def is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


@st.composite
def lines(draw: Any, names: tuple[str, ...], left_out: frozenset[str]) -> list[str]:
    """A command line: some options and arguments of a command, with any words as their values."""
    name = draw(st.sampled_from(names))
    parameters = [one for one in ALL[name].params if not (left_out | {"--help-all"}) & set(one.opts)]
    given: list[str] = []
    for one in draw(st.lists(st.sampled_from([one for one in parameters if is_option(one)]), max_size=3)):
        given.append(draw(st.sampled_from([*one.opts, *one.secondary_opts])))
        if not one.is_flag:
            given.append(draw(words))
    arguments = [draw(st.one_of(st.just(QUEUE), words)) for one in parameters if not is_option(one)]
    given += arguments[: draw(st.integers(0, len(arguments)))]
    return [*name.split(), *draw(st.permutations(given) if draw(st.booleans()) else st.just(given))]


class Screen:
    """A terminal in place of a stream, and what it shows."""

    def __init__(self, patch: pytest.MonkeyPatch, stream: str) -> None:
        self._ours, its = os.openpty()
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._tty = os.fdopen(its, "w", encoding="utf-8", errors="backslashreplace")
        patch.setattr(stream, self._tty)

    def _read(self) -> None:
        with suppress(OSError):  # Linux answers a read after the end with an error
            while chunk := os.read(self._ours, 65_536):
                self._chunks.append(chunk)

    def close(self) -> None:
        self._tty.close()
        self._reader.join()
        os.close(self._ours)

    @property
    def text(self) -> str:
        return b"".join(self._chunks).decode().replace("\r", "")


def run(monkeypatch: pytest.MonkeyPatch, line: list[str]) -> tuple[int, str, str]:
    """The exit status of the program, and what it showed on its two terminals."""
    with monkeypatch.context() as patch:
        out, err = Screen(patch, "sys.stdout"), Screen(patch, "sys.stderr")
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        try:
            status = program.run(line)
        finally:
            out.close()
            err.close()
    about = f"rmq {line} ended with {status}: {out.text[-300:]!r} {err.text[-600:]!r}"
    assert status in list(ExitStatus), about
    assert "Traceback" not in out.text + err.text, about
    assert obeyed(OF_RICH.sub("", out.text + err.text)) == set(), about
    return status, out.text, err.text


@pytest.fixture
def shop(clean_server, client, monkeypatch):
    """A queue with something odd in every place, as a snapshot."""
    monkeypatch.setenv("REDIS_URL", clean_server.url)
    monkeypatch.setenv("COLUMNS", "200")
    odd = "\x1b[31m\x07\x9b2J\u202eevil"
    queue = RedisMessageQueue(QUEUE, client=client, enable_failed_queue=True, message_wait_interval_seconds=0)

    def fail(message: Any) -> None:
        raise ValueError(odd)

    queue.publish(odd, tenant=odd)
    with pytest.raises(ValueError, match="evil"):
        queue.process_message_callback(fail)
    client.lpush(queue.key.dead_letter, odd.encode(), b"\x9b\xff")
    for number in range(3):
        queue.publish(f"{odd} {number}", tenant=odd)
        queue.publish({odd: number})
    queue.publish(odd, delay_seconds=1_000)
    return snapshot.take(client)


@examples(15, 4_000)
@given(line=lines(CALLED, frozenset(NOT_CALLED)), as_json=st.booleans())
def test_every_argument_of_the_commands_that_return(shop, client, monkeypatch, line, as_json):
    """They run on a real queue, at a terminal."""
    if line[0] == "consume":
        line = [*line, "--wait-seconds", "0"]
    if as_json:  # at its beginning: an option at its end may lack a value
        line = [line[0], "--json", *line[1:]]
    snapshot.restore(client, shop)
    status, out, err = run(monkeypatch, line)
    if status == ExitStatus.USAGE and line[-1] not in ("-h", "--help"):
        assert err.startswith("rmq") and err.count("\n") == 1, (line, err)
        assert snapshot.take(client) == shop, line
    if "--json" in line:
        for document in out.splitlines():
            json.loads(document)


@examples(20, 8_000)
@given(line=lines(tuple(ALL), frozenset()))
def test_every_argument_of_every_command(shop, client, monkeypatch, line):
    """The program reads and checks them; what the command would do is left out."""
    assume("--help" not in line)
    load = program._load
    monkeypatch.setattr(program, "_load", lambda name: without_function(load(name)))
    status, _, _ = run(monkeypatch, line)
    assert status in (ExitStatus.OK, ExitStatus.USAGE), line


def without_function(command: Any) -> Any:
    for inner in getattr(command, "commands", {}).values():
        without_function(inner)
    if not getattr(command, "commands", None):
        command.callback = lambda **_: None
    return command


@examples(10, 2_000)
@given(line=st.lists(words, max_size=3))
def test_words_that_are_no_command(shop, monkeypatch, line):
    """The first word is a mistake, too."""
    assume(not line or line[0] not in program.COMMANDS)
    status, _, _ = run(monkeypatch, line)
    assert status == ExitStatus.USAGE
