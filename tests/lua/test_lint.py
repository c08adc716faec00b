"""The linter of the scripts finds each kind of error."""

from pathlib import Path

import pytest

pytest.importorskip("luaparser", reason="it comes with the extra `lint`")

from tests.lua.lint import Page, Reader, in_order, lint

STEP = """-- lib/step.lua: a step.
-- Needs  pending
-- Makes  double
local FACTOR = 2
local function double(number) return FACTOR * number + redis.call('LLEN', pending) end
"""


OUTER = """-- lib/outer.lua: a step that includes another.
-- Makes  quadruple
--@include step
local function quadruple(number) return 2 * double(number) end
"""


def findings(text: str, given: tuple[str, ...] = ("pending",), step: str = STEP, outer: str = OUTER) -> list[str]:
    """What the linter says of a script that can include two steps."""
    steps = {"step": Page(Path("lib/step.lua"), step), "outer": Page(Path("lib/outer.lua"), outer)}
    for shared in in_order(steps):
        Reader(shared, steps).read(shared.declared("Needs"), "need")
    page = Page(Path("x.lua"), text)
    Reader(page, steps).read(list(given), "header")
    return [f"{line}: {what}" for one in (*steps.values(), page) for line, what in one.findings]


@pytest.mark.in_full  # it is what `make lint` does, and takes seconds
def test_the_scripts_of_this_project_pass():
    assert [(page.path.name, page.findings) for page in lint() if page.findings] == []


def test_a_script_that_uses_a_step_as_declared_passes():
    assert findings("--@include step\nreturn double(3)\n") == []


def test_a_step_brings_what_it_includes():
    assert findings("--@include outer\nreturn double(3) + quadruple(3)\n") == []


def test_a_step_says_what_its_own_text_needs_and_the_script_has_the_rest():
    assert findings("--@include outer\nreturn quadruple(3)\n", ()) == ["1: lib/step.lua needs 'pending'"]
    assert findings(
        "--@include outer\nreturn quadruple(3)\n", outer=OUTER.replace("-- Makes", "-- Needs  pending\n-- Makes")
    ) == ["1: 'pending' is not needed"]


def test_steps_cannot_include_each_other_in_a_circle():
    with pytest.raises(ValueError, match="step includes outer includes step"):
        findings("return 1\n", step=f"{STEP}--@include outer\n")


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("--@include step\nreturn double(trouble)\n", "2: 'trouble' is not defined"),
        ("--@include step\nreturn double(KEYS[1])\n", "2: 'KEYS' is not defined"),
        ("--@include step\nresult = double(1)\n", "2: 'result' is not defined"),
        ("--@include step\nlocal one = 1\nreturn double(2)\n", "2: 'one' is never used"),
        ("--@include step\nfor one = 1, 2 do local one = double(one) end\n", "2: 'one' shadows the 'one' of line 2"),
        ("--@include step\npending = double(1)\n", "2: 'pending' is not this file's to change"),
        ("--@include step\ndouble = double(1)\n", "2: 'double' is not this file's to change"),
        ("--@include step\nreturn double(FACTOR)\n", "2: 'FACTOR' is private to lib/step.lua"),
        ("--@include step\nreturn pending\n", "1: nothing of lib/step.lua is used"),
        ("--@include outer\n--@include step\nreturn quadruple(1)\n", "2: lib/step.lua is here already"),
        ("--@include outer\nreturn double(FACTOR)\n", "2: 'FACTOR' is private to lib/step.lua"),
        ("--@include nowhere\nreturn pending\n", "1: there is no lib/nowhere.lua"),
        ("return 1\n", "1: 'pending' of the header is never used"),
    ],
)
def test_a_mistake_in_a_script_is_found(text: str, finding: str):
    assert finding in findings(text)


def test_a_script_must_have_what_a_step_needs():
    assert findings("--@include step\nreturn double(3)\n", ()) == ["1: lib/step.lua needs 'pending'"]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (("-- Needs  pending\n", ""), "4: 'pending' is not defined"),
        (("-- Needs  pending", "-- Needs  pending, leases"), "1: 'leases' is not needed"),
        (("-- Makes  double", "-- Makes  double, treble"), "1: it does not make 'treble'"),
        (("local FACTOR = 2", "local FACTOR = 2\npending = 'other'"), "5: 'pending' is not this file's to change"),
    ],
)
def test_a_step_must_declare_what_it_needs_and_makes(change: tuple[str, str], finding: str):
    assert finding in findings("--@include step\nreturn double(3)\n", ("pending", "leases"), STEP.replace(*change))
