"""The loader assembles the scripts, and their headers are correct."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from redis_message_queue.redis_py.wire import not_permitted
from redis_message_queue.stored import scripts
from redis_message_queue.stored.bounds import MAX_BYTES
from redis_message_queue.stored.keys import KEY_MAP
from redis_message_queue.stored.scripts import (
    all_names,
    all_scripts,
    argument_names,
    assembled,
    key_names,
    script,
    step_text,
)
from tests.tables import row

LUA = Path(str(files("redis_message_queue") / "lua"))
INCLUDE = re.compile(r"^ *--@include (\w+)$", re.MULTILINE)

FORBIDDEN = "The user executing the script can't run this command or subcommand"

STEPS = sorted(path.stem for path in (LUA / "lib").glob("*.lua"))


def text_of(name: str) -> str:
    return (LUA / f"{name}.lua").read_text("utf-8")


def header_of(name: str) -> list[str]:
    """The comment lines before anything else."""
    lines = text_of(name).splitlines()
    end = next(place for place, line in enumerate(lines) if not line.startswith("-- "))
    return lines[:end]


def test_there_is_a_script_for_each_verb():
    """The list of names is the list of files."""
    assert all_names() == sorted(path.stem for path in LUA.glob("*.lua"))
    verbs = {"claim", "enqueue", "requeue", "publish", "retry_later", "renew", "notify", "settle"}
    assert verbs <= set(all_names())


def text_of_step(step: str) -> str:
    """A shared step as the server gets it: without its own includes, which stand before it or further up."""
    return re.sub(r"--@include \w+\n", "", step_text(step))


def test_shared_steps_stand_where_they_were_asked_for(subtests: pytest.Subtests):
    """The server gets the text of each step in full, behind those that it includes, and no include line."""
    for name in all_names():
        with row(subtests, script=name):
            source, asked = script(name).source, INCLUDE.findall(text_of(name))
            assert INCLUDE.search(source) is None
            for step in asked:
                assert source.count(text_of_step(step)) == asked.count(step)
                for nested in INCLUDE.findall(step_text(step)):
                    assert -1 < source.find(text_of_step(nested)) < source.rfind(text_of_step(step))


def test_a_step_stands_once_in_a_block_and_the_blocks_in_it(monkeypatch: pytest.MonkeyPatch):
    """Where it is first asked for, by the script or by another step; a block that has ended has it for itself."""
    steps = {"a": "-- a\n", "b": "--@include a\n-- b\n", "c": "--@include b\n--@include a\n-- c\n"}
    monkeypatch.setattr(scripts, "step_text", steps.__getitem__)
    header = "-- x.lua: words.\n-- KEYS  one\n-- Returns 1.\n"
    for text, expected in [
        ("--@include a\n--@include a\n", "a"),
        ("--@include c\n--@include b\n", "a b c"),
        ("--@include a\nif one then\n  --@include b\nend\n--@include c\n", "a b b c"),
        ("do\n  --@include b\n  do\n    --@include c\n  end\nend\n--@include a\n", "a b c a"),
        ("do\n  --@include a\nend\ndo\n  --@include a\n\n  --@include a\nend\n", "a a"),
    ]:
        assembled_steps = re.findall(r"^-- ([abc])$", assembled(header + text), re.MULTILINE)
        assert assembled_steps == expected.split(), text


def test_a_script_gets_the_bounds_that_it_mentions():
    """As variables, in the line below the header: the numbers are those of `bounds`."""
    header = "-- x.lua: words.\n-- KEYS  one\n-- Returns 1.\n"
    bindings = assembled(f"{header}return one or MAX_BYTES -- not MAX_MESSAGES\n").splitlines()[3]
    assert bindings == f"local one = unpack(KEYS, 1, 1) local MAX_BYTES = {MAX_BYTES}"
    assert "MAX_" not in script("notify").source


def test_a_shared_step_opens_with_its_sentence_and_what_it_makes(subtests: pytest.Subtests):
    """And includes others at its top, if at all. The linter compares what it needs and makes with its text."""
    assert STEPS
    for step in STEPS:
        with row(subtests, step=step):
            text = step_text(step)
            assert re.match(rf"-- lib/{step}\.lua: \S.*\.\n(-- Needs  .*\n)*-- Makes  .*\n", text)
            assert not re.search(r"^(?!--).*\n(.*\n)*--@include", text, re.MULTILINE)


def test_an_include_that_does_not_exist_fails():
    """A misspelt step is found when the script is read."""
    with pytest.raises(FileNotFoundError):
        assembled("-- x.lua: words.\n-- KEYS  one\n-- Returns 1.\n--@include nowhere\n")


def test_the_digest_is_the_one_that_the_server_makes(client: redis.Redis, subtests: pytest.Subtests):
    """EVALSHA finds what SCRIPT LOAD has put there."""
    for name in all_names():
        with row(subtests, script=name):
            assert client.script_load(script(name).source) == script(name).sha


def test_a_script_is_read_once(subtests: pytest.Subtests):
    """Asked for again, it is the same object."""
    for name in all_names():
        with row(subtests, script=name):
            assert script(name) is script(name)


def test_a_line_that_calls_tells_which_commands(subtests: pytest.Subtests):
    """Redis 6.2 says only the digest and the line of a forbidden call, whichever client's copy of a script it is."""
    known = set()
    for one in all_scripts():
        calling = [
            line
            for line, text in enumerate(one.source.splitlines(), 1)
            if re.search(r"redis\.p?call\(('|$)", re.sub(r"--.*", "", text))
        ]
        # The copies have the same lines and another digest.
        for line in calling[:1] if one.name in known else calling:
            with row(subtests, script=one.name, line=line):
                commands = one.commands_in(line)
                said = f"Error running script (call to f_{one.sha}): @user_script:{line}: @user_script: {line}: "
                refused = not_permitted(redis.ResponseError(f"{said}{FORBIDDEN}"), one.verb)
                assert commands
                assert refused is not None
                assert f"may not run {' or '.join(commands)}," in str(refused)
        known.add(one.name)


def test_a_call_may_name_its_command_in_the_line_after():
    """Redis counts the line in which the call begins."""
    one = script("publish")
    lines = one.source.splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith("redis.call("))
    assert one.commands_in(line) == ("HMGET",)


def test_names_are_read_from_the_header():
    """They stand alone or before a colon, over as many lines as the paragraph has; behind a list there are no more."""
    source = (
        "-- x.lua: words.\n-- KEYS  one | two: second,\n--       in two lines\n--       rest...: all others\n"
        "-- ARGV  four (number): no key | five (flag)\n--       six...: pairs\n"
        "--       seven: part of a pair\n-- Returns 1.\n"
    )
    assert key_names(source) == ("one", "two", "rest")
    assert argument_names(source) == ("four", "five")


def test_keys_and_arguments_become_variables_in_one_line_below_the_header(client: redis.Redis):
    """So that the line of an error tells where it is; numbers, flags and lists are ready for use."""
    source = assembled(
        "-- x.lua: words.\n-- KEYS  one | rest...\n-- ARGV  four (number) | five (flag) | six...\n-- Returns all.\n"
        "return {one, rest, four + 1, five and 'yes' or 'no', #six, six[1] or '', six[#six] or ''}\n"
    )
    assert len(source.splitlines()) == 6
    assert client.eval(source, 3, "a", "b", "c", 41, 1, "x", "y") == [b"a", [b"b", b"c"], 42, b"yes", 2, b"x", b"y"]
    assert client.eval(source, 1, "a", 41, 0) == [b"a", [], 42, b"no", 0, b"", b""]
    many = list(range(12_000))  # more than `unpack` can carry
    assert client.eval(source, 1, "a", 41, 0, *many)[4:] == [12_000, b"0", b"11999"]


def test_positions_of_keys_and_arguments_stand_in_the_header_alone(subtests: pytest.Subtests):
    """Nothing else has to be changed when a key or an argument is added."""
    for path in (*LUA.rglob("*.lua"), LUA.parent / "testing" / "fast_forward.lua"):
        with row(subtests, path=path.stem):
            assert not re.search(r"(?<!')\b(KEYS|ARGV)\b", re.sub(r"--.*", "", path.read_text("utf-8")))


def test_a_script_without_a_keys_paragraph_is_refused():
    """A script whose keys have no names cannot be called."""
    with pytest.raises(ValueError, match="must name its keys"):
        assembled("-- x.lua: words.\n-- Returns 1.\nreturn 1\n")


def test_a_script_opens_with_its_header(subtests: pytest.Subtests):
    """One sentence, KEYS, ARGV where it takes arguments, Returns: in this order."""
    for name in all_names():
        with row(subtests, script=name):
            header = header_of(name)
            assert re.fullmatch(rf"-- {name}\.lua: [a-z].*\.", header[0])
            paragraphs = [found[1] for line in header[1:] if (found := re.match(r"-- (KEYS  |ARGV  |Returns )", line))]
            assert paragraphs in (["KEYS  ", "ARGV  ", "Returns "], ["KEYS  ", "Returns "])


def test_a_key_is_called_as_the_key_map_calls_it(subtests: pytest.Subtests):
    """A name in a header is a word of the key map, or stands for one."""
    words = {kind.word.split("::")[0] for kind in KEY_MAP}
    stand_ins = {"marker": "deduplication", "markers": "deduplication", "kept": "completed", "members": "group"}
    stand_ins |= {"counted": "meta", "before": "meta"}
    stand_ins |= {"targets": "pending", "sources": "pending", "ack_reply": "reply"}
    for name in all_names():
        with row(subtests, script=name):
            assert {stand_ins.get(key, key) for key in script(name).keys} <= words
