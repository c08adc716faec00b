"""What all commands share: the server, the output, the exit status, and one line for a mistake."""

import base64
import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from docs.reference.cli import commands
from redis_message_queue import RedisMessageQueue
from redis_message_queue.__main__ import main
from redis_message_queue.cli import clients as connection
from redis_message_queue.cli.exit_status import ExitStatus, status_of
from redis_message_queue.cli.output import Output, cell, to_json
from redis_message_queue.cli.program import COMMANDS, RARE_COMMANDS
from redis_message_queue.values.errors import ConfigurationError, QueueBackpressureError, RetryBudgetExhaustedError
from tests import fork_server
from tests.embedded.waiting import until

pytestmark = pytest.mark.topic("Command line")


SECRET = "hunter2"


def python(code: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", code]


# The program


def test_every_command_has_two_pages_of_help(rmq, subtests, monkeypatch):
    """The first has what most people need, the second has everything; the list has the first sentence of each page.

    In a terminal of 80 columns no name is cut.
    """
    monkeypatch.setenv("COLUMNS", "80")
    first, listed = rmq("--help").out, rmq("--help-all").out
    for path, command in commands():
        with subtests.test(path):
            few, everything = rmq(*path.split()[1:], "--help"), rmq(*path.split()[1:], "--help-all")
            assert few.status == ExitStatus.OK
            assert f"Usage: {path}" in few.out
            for parameter in command.params:
                names = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else []
                for name in names if not parameter.hidden else ():
                    assert re.search(rf"(?<![\w-]){name}(?![\w-])", everything.out), name
                    if parameter.rich_help_panel is None:
                        assert re.search(rf"(?<![\w-]){name}(?![\w-])", few.out), name
            if few.out != everything.out:
                assert f"{path} --help-all shows " in few.out
            for page in (few, everything):
                assert max(map(len, page.out.splitlines())) <= 80
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", listed, re.MULTILINE), name
        assert (re.search(rf"^  {name} ", first, re.MULTILINE) is None) == (name in RARE_COMMANDS), name


def test_without_a_command_it_shows_them_and_fails(rmq):
    ended = rmq()
    assert ended.status == ExitStatus.USAGE
    assert "publish" in ended.out


def test_it_tells_its_version(rmq):
    assert re.fullmatch(r"rmq \d+\.\d+\.\d+\n", rmq("--version").out)


@pytest.mark.promise("A usage error is one line on stderr without a traceback.")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pubish"], "rmq: No such command 'pubish'. Did you mean publish?"),
        (["spark", "repord"], "rmq spark: No such command 'repord'. Did you mean 'report'?"),
        (["frobnicate"], "rmq: No such command 'frobnicate'. (see rmq --help)"),
        (["publish"], "rmq publish: Missing argument 'QUEUE'"),
        (["publish", "orders", "--colour"], "rmq publish: No such option: --colour. (see"),
        (["publish", "orders", "--teannt", "x"], "rmq publish: No such option: --teannt. Did you mean --tenant?"),
        (["peek", "q", "pendign"], "rmq peek: Invalid value for 'SOURCE': 'pendign' is not one of 'pending'"),
        (["publish", "orders", "x", "--delay-seconds", "soon"], "rmq publish: Invalid value for '--delay-seconds'"),
        (["publish", "", "x"], "rmq publish: name must not be empty"),
        (["publish", "orders", "--file", "nowhere.txt"], "rmq publish: nowhere.txt: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(rmq, arguments, said):
    """Without a traceback, and with the status for wrong usage."""
    ended = rmq(*arguments)
    assert ended.status == ExitStatus.USAGE
    assert ended.err.startswith(said)
    assert ended.err.count("\n") == 1
    assert ended.out == ""


def test_the_installed_program_is_this_one_and_help_imports_nothing_heavy(rmq):
    """Help does not import Spark, the demo or the tables. Python lists what it imports if it is asked to."""
    program = Path(sys.executable).with_name("rmq")
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    ended = subprocess.run([program, "--help"], capture_output=True, text=True, env=environment, timeout=120)
    assert ended.returncode == ExitStatus.OK
    assert "Usage: rmq " in ended.stdout
    imported = set(re.findall(r"\| +([\w.]+)$", ended.stderr, re.MULTILINE))
    assert "redis_message_queue.__main__" in imported
    heavy = {"pyspark", "redis_message_queue.cli.demo.scenario", "redis_message_queue.embedded", "rich.progress"}
    assert imported & heavy == set()


@pytest.mark.promise(
    "`rmq` and `python -m redis_message_queue` are the same program; without the `cli` extra it says what to install."
)
def test_without_the_extra_it_says_what_to_install():
    code = (
        "import sys\n"
        "for name in [name for name in sys.modules if name.startswith(('redis_message_queue', 'typer'))]:\n"
        "    del sys.modules[name]\n"
        "sys.modules['typer'] = None\n"
        "from redis_message_queue.__main__ import main\n"
        "sys.exit(main())"
    )
    ended = fork_server.run(python(code))
    assert ended.returncode == ExitStatus.USAGE
    assert ended.stderr == "rmq: the command line is an extra: pip install 'redis-exact-queue[cli]'\n"


def test_a_shell_can_ask_for_completions():
    """As the script does that --install-completion writes."""
    code = "from redis_message_queue.__main__ import main; main()"
    asked = {"_RMQ_COMPLETE": "complete_bash", "COMP_WORDS": "rmq pub", "COMP_CWORD": "1"}
    assert fork_server.run(python(code), env=os.environ | asked).stdout.split() == ["publish"]


# The server


def test_the_url_can_be_given_and_wins_over_the_environment(rmq, clean_server, monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://localhost:1")
    assert rmq("publish", "orders", "x", "--url", clean_server.url).status == ExitStatus.OK


@pytest.mark.promise("`rmq` never prints a password in a URL or passes it on a command line.")
@pytest.mark.parametrize(
    ("url", "status"),
    [
        (f"redis://:{SECRET}@localhost:1/0", ExitStatus.SERVER),
        (f"redis://user:{SECRET}@no-such-host.invalid:1", ExitStatus.SERVER),
        (f"unix:///nowhere.sock?password={SECRET}", ExitStatus.SERVER),
        (f"http://:{SECRET}@localhost", ExitStatus.USAGE),
        (f":{SECRET}@localhost", ExitStatus.USAGE),
        (f"redis://:a/{SECRET}@localhost:1", ExitStatus.USAGE),
        (f"redis://:a#{SECRET}@localhost:1", ExitStatus.USAGE),
        (f"redis://localhost:{SECRET}", ExitStatus.USAGE),
        (f"redis://localhost:1?socket_timeout={SECRET}", ExitStatus.USAGE),
    ],
)
def test_a_server_that_cannot_be_used_is_told_in_one_line_without_the_password(rmq, url, status):
    """Whatever part of the URL it was taken for."""
    ended = rmq("publish", "orders", "x", "--url", url)
    assert ended.status == status
    assert ended.err.count("\n") == 1
    assert SECRET not in ended.err


@pytest.mark.promise("`rmq` never prints a password in a URL or passes it on a command line.")
def test_a_wrong_password_is_the_servers_no(rmq, start_server):
    protected = start_server(config={"requirepass": "right"})
    url = f"redis://:{SECRET}@localhost:{protected.port}/0"
    ended = rmq("publish", "orders", "x", "--url", url)
    assert (ended.status, SECRET in ended.err) == (ExitStatus.SERVER, False)
    assert rmq("publish", "orders", "x", "--url", url.replace(SECRET, "right")).status == ExitStatus.OK


@pytest.mark.promise("`rmq` detects whether a server is part of a cluster.")
def test_a_cluster_is_found_by_itself(rmq, start_server):
    """Any of its nodes will do, and the keys of the queue share a slot."""
    node = start_server(config={"cluster-enabled": "yes", "cluster-announce-ip": "127.0.0.1"})
    with node.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        assert until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        assert rmq("publish", "orders", "x", "--url", node.url).status == ExitStatus.OK
        assert client.exists("{orders}::pending")
        assert rmq("consume", "orders", "--url", node.url).out == "x\n"


@pytest.mark.promise("`rmq` never prints a password in a URL or passes it on a command line.")
def test_a_url_is_shown_without_user_and_password():
    assert connection.without_password(f"rediss://me:{SECRET}@db.example:7000/2?a=b") == "rediss://db.example:7000/2"
    assert connection.without_password(f"unix:///run/redis.sock?password={SECRET}") == "unix:///run/redis.sock"
    assert connection.without_password("redis://[::1]") == "redis://[::1]:6379"


def test_the_options_of_the_keys_reach_the_queue(rmq, client):
    """The same that the program which owns the queue was written with."""
    rmq("publish", "orders", "x", "--key-separator", "/", "--hash-tag")
    assert client.exists("{orders}/pending")
    queue = RedisMessageQueue("orders", client=client, key_separator="/", hash_tag=True)
    assert queue.stats().pending == 1


# The output


@pytest.mark.promise("With `--json`, stdout contains only JSON.")
def test_json_has_times_in_iso_and_says_what_is_base64():
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = json.loads(to_json({"at": moment, "text": "ä".encode(), "raw": b"\xff", "none": None}))
    assert made == {
        "at": "2026-01-02T03:04:05+00:00",
        "text": "ä",
        "raw_base64": base64.b64encode(b"\xff").decode(),
        "none": None,
    }


def test_a_table_in_a_pipe_is_plain_columns(capsys):
    """One row a line, however long, and nothing that a terminal would obey."""
    rows = [{"name": "a\nb\x1b[31m", "count": 1}, {"name": "x" * 300, "count": 1_234_567}]
    assert Output().table(rows) == 2
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["name", "count"]
    assert second.split() == ["a\\nb\\x1b[31m", "1"]
    assert third.split() == ["x" * 300, "1,234,567"]


@pytest.mark.promise("With `--json`, stdout contains only JSON.")
def test_a_table_as_json_is_an_object_a_line(capsys):
    assert Output(json=True).table([{"name": "a", "hidden": 1}], columns=["name"]) == 1
    assert capsys.readouterr().out == '{"name": "a", "hidden": 1}\n'


def test_an_empty_table_says_so_beside_the_data(capsys):
    assert Output().table([], empty="no orders") == 0
    assert capsys.readouterr() == ("", "no orders\n")


@pytest.mark.parametrize("no_color", [True, False])
def test_a_table_in_a_terminal_is_drawn(no_color):
    """NO_COLOR takes its colours, and brackets in a payload are no markup."""
    code = "from redis_message_queue.cli.output import Output; Output().table([{'name': '[red]x'}], title='things')"
    if no_color:  # it is looked at when a table is drawn, so that the process can be forked
        code = f"import os; os.environ['NO_COLOR'] = '1'; {code}"
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "80"}
    ours, its = pty.openpty()
    assert fork_server.run(python(code), stdout=its, env=environment).returncode == 0
    os.close(its)
    drawn = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "│ [red]x │" in drawn
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", drawn) or not no_color


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (12345, "12,345"),
        (0.25, "0.2"),
        (0.0012, "0.0012"),
        (b"\xff", "base64:/w=="),
        ({}, "{}"),
    ],
)
def test_a_cell_is_what_people_read(value, shown):
    assert cell(value) == shown


# The exit status


@pytest.mark.promise("The exit status of a command distinguishes a usage error, a server problem and a failed check.")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("x"), ExitStatus.USAGE),
        (FileNotFoundError("x"), ExitStatus.USAGE),
        (QueueBackpressureError("x"), ExitStatus.FAILED),
        (RetryBudgetExhaustedError("x"), ExitStatus.SERVER),
    ],
)
def test_an_error_has_the_status_of_what_can_be_done_about_it(error, status):
    assert status_of(error) == status


@pytest.mark.promise("The exit status of a command distinguishes a usage error, a server problem and a failed check.")
def test_every_status_has_a_meaning_and_its_usual_number():
    assert [int(one) for one in ExitStatus] == [0, 1, 2, 3, 74, 130, 141, 143]
    assert all(len(one.meaning) > 10 for one in ExitStatus)


@pytest.mark.promise(
    "`rmq` and `python -m redis_message_queue` are the same program; without the `cli` extra it says what to install."
)
def test_main_is_the_program():
    """The entry point and the module are one function."""
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [("stats",), ("peek",), ("records",), ("tenants",), ("publish",), ("consume",), ("purge", "pending", "--yes")],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_is_a_key_of_another_queue_is_wrong_usage(rmq, queue, arguments):
    """The keys of `orders::tenant_pending` could be those of a tenant of `orders`."""
    queue.publish("m", tenant="pending")
    command, *rest = arguments
    rest = ["m"] if command == "publish" else rest
    ended = rmq(command, "orders::tenant_pending", *rest)
    assert (ended.status, ended.out) == (ExitStatus.USAGE, "")
    assert "reserved word 'tenant_pending'" in ended.err
    assert queue.stats().pending == 1
