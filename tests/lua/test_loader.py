"""The loader puts together what the server gets, and the headers tell the truth about it."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from redis_message_queue.keys import KEY_MAP
from redis_message_queue.scripts import all_names, key_names, script, with_includes
from tests.lua.scripts_runner import argument_names

LUA = Path(str(files("redis_message_queue") / "lua"))
INCLUDE = re.compile(r"^ *--@include (\w+)$", re.MULTILINE)

every_script = pytest.mark.parametrize("name", all_names())
every_step = pytest.mark.parametrize("step", sorted(path.stem for path in (LUA / "lib").glob("*.lua")))


def text_of(name: str) -> str:
    return (LUA / f"{name}.lua").read_text("utf-8")


def header_of(name: str) -> list[str]:
    """The comment lines before anything else."""
    lines = text_of(name).splitlines()
    end = next(place for place, line in enumerate(lines) if not line.startswith("-- "))
    return lines[:end]


def code_of(name: str) -> str:
    """A script's own text without comments."""
    return re.sub(r"--.*", "", text_of(name))


def test_there_is_a_script_for_each_verb():
    """The list of names is the list of files."""
    assert all_names() == sorted(path.stem for path in LUA.glob("*.lua"))
    verbs = {"claim", "enqueue", "give_back", "publish", "put_off", "renew", "ring", "settle"}
    assert verbs <= set(all_names())


@every_script
def test_shared_steps_stand_where_they_were_asked_for(name: str):
    """The server gets each step's text in full, once, and no include line."""
    source = script(name).source
    assert INCLUDE.search(source) is None
    for step in INCLUDE.findall(text_of(name)):
        assert source.count((LUA / "lib" / f"{step}.lua").read_text("utf-8")) == 1


@every_script
def test_a_step_is_included_where_it_is_used_and_nowhere_else(name: str):
    """No script calls a function that it has not got, and none carries one that it never calls."""
    source = re.sub(r"--.*", "", script(name).source)
    called = set(re.findall(r"(?<!function )\b(\w+)\(", source))
    for path in (LUA / "lib").glob("*.lua"):
        offered = set(re.findall(r"^local function (\w+)", path.read_text("utf-8"), re.MULTILINE))
        if offered:
            assert bool(offered & called) == (path.stem in INCLUDE.findall(text_of(name))), path.stem


@every_step
def test_a_shared_step_opens_with_its_sentence_and_includes_nothing(step: str):
    """Includes are put in once, so a step must stand on its own."""
    text = (LUA / "lib" / f"{step}.lua").read_text("utf-8")
    assert re.match(rf"-- lib/{step}\.lua: \S.*\.\n", text)
    assert INCLUDE.search(text) is None


def test_an_include_that_does_not_exist_fails():
    """A misspelt step is found when the script is read."""
    with pytest.raises(FileNotFoundError):
        with_includes("--@include nowhere\n")


@every_script
def test_the_digest_is_the_one_that_the_server_makes(name: str, client: redis.Redis):
    """EVALSHA finds what SCRIPT LOAD has put there."""
    assert client.script_load(script(name).source) == script(name).sha


@every_script
def test_a_script_is_read_once(name: str):
    """Asked for again, it is the same object."""
    assert script(name) is script(name)


def test_key_names_are_read_from_the_header():
    """They stand before the colons of the KEYS paragraph, over as many lines as it has."""
    source = "-- x.lua: words.\n-- KEYS  one: first | two: second\n--       three: third\n-- ARGV  four: no key\n"
    assert key_names(source) == ("one", "two", "three")
    assert key_names("-- x.lua: words.\n-- KEYS  one: first\n-- Returns a number: 1.\n") == ("one",)


def test_a_script_without_a_keys_paragraph_is_refused():
    """A script whose keys have no names cannot be called."""
    with pytest.raises(ValueError, match="must name its keys"):
        key_names("-- x.lua: words.\n-- Returns 1.\nreturn 1\n")


@every_script
def test_a_script_opens_with_its_header(name: str):
    """One sentence, KEYS, ARGV where it takes arguments, Returns: in this order."""
    header = header_of(name)
    assert re.fullmatch(rf"-- {name}\.lua: [a-z].*\.", header[0])
    paragraphs = [found[1] for line in header[1:] if (found := re.match(r"-- (KEYS  |ARGV  |Returns )", line))]
    expected = ["KEYS  ", "ARGV  ", "Returns "] if "ARGV" in code_of(name) else ["KEYS  ", "Returns "]
    assert paragraphs == expected


def bindings(code: str, table: str) -> dict[int, str]:
    """Which place of KEYS or ARGV each local variable is bound to, where it is bound to nothing but that."""
    bound = {}
    for left, right in re.findall(rf"^local ([\w, ]+) = (.*{table}\[.*)$", code, re.MULTILINE):
        for variable, value in zip(left.split(", "), right.split(", "), strict=False):
            if found := re.fullmatch(rf"(?:tonumber\()?{table}\[(\d+)\]\)?(?: == '1')?", value):
                bound[int(found[1])] = variable
    return bound


@every_script
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_keys_and_arguments_are_used_in_the_order_of_the_header(name: str, table: str):
    """Every place that has a name is used, others only where pairs follow, and a variable is called as its place."""
    names = script(name).keys if table == "KEYS" else argument_names(script(name).source)
    places = dict(enumerate(names, 1))
    code = code_of(name)
    used = set(map(int, re.findall(rf"{table}\[(\d+)\]", code)))
    more_follow = re.search(r"[|-] +then " if table == "ARGV" else "there may be more of them|of each", text_of(name))
    # Keys that may come more than once are reached by counting.
    counted = {len(names)} if more_follow and table == "KEYS" else set()
    ignored = {place for place, word in places.items() if f"{word}: ignored" in text_of(name)}
    assert used | counted >= places.keys() - ignored
    assert more_follow or used <= places.keys()
    assert bindings(code, table).items() <= places.items()


@every_script
def test_a_key_is_called_as_the_key_map_calls_it(name: str):
    """A name in a header is a word of the key map, or stands for one."""
    words = {kind.word.split("::")[0] for kind in KEY_MAP}
    stand_ins = {"marker": "deduplication", "kept": "completed", "target": "pending", "source": "pending"}
    stand_ins |= {"members": "group"}
    assert {stand_ins.get(key, key) for key in script(name).keys} <= words
