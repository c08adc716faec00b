"""`rmq dev` starts a server that ends with the command."""

import json
import shlex
import signal
import subprocess
import sys

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_message_queue.__main__ import main
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.embedded.server_binary import SETTING
from tests.embedded.waiting import falls_silent
from tests.fork_server import Program

pytestmark = pytest.mark.topic("Command line")


@pytest.fixture(autouse=True)
def chosen_server(monkeypatch, server_setting):
    """And commands in Python are forked."""
    monkeypatch.setenv(SETTING, server_setting)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setattr(subprocess, "Popen", Program)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.promise(
    "The server of `rmq dev` ends with the command, and `rmq dev -- command` returns the status of the command."
)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_command(start_rmq, how):
    process = start_rmq("dev")
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with redis.Redis.from_url(url) as client:
        assert client.ping()
        port = client.connection_pool.connection_kwargs["port"]
    process.send_signal(how)
    _, said = process.communicate(timeout=120)
    if how != signal.SIGKILL:  # which may come before it has said everything
        assert f"export REDIS_URL={url}\n" in said
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else ExitStatus.OK)
    assert falls_silent(port)


def test_only_who_has_the_url_gets_in_unless_no_password_is_wanted(start_rmq):
    for option, refused in (("--password", True), ("--no-password", False)):
        process = start_rmq("dev", option)
        assert process.stdout is not None
        address = redis.connection.parse_url(process.stdout.readline().strip())
        assert ("password" in address) == refused
        # redis-py would try a wrong password again, for seconds.
        with redis.Redis(port=address["port"], retry=Retry(NoBackoff(), 0)) as stranger:
            if refused:
                with pytest.raises(redis.AuthenticationError):
                    stranger.ping()
            else:
                assert stranger.ping()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_script_reads_the_url_from_one_line_of_json(start_rmq):
    process = start_rmq("dev", "--json")
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    with redis.Redis.from_url(told["url"]) as client:
        assert client.ping()
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=120)
    assert (rest, said) == ("", "")


def test_what_is_persisted_is_there_the_next_time(tmp_path, capfd):
    url = "redis.Redis.from_url(os.environ['REDIS_URL'])"
    write = python(f"import os, redis; {url}.set('kept', 'yes')")
    read = python(f"import os, redis; print({url}.get('kept'))")
    assert main(["dev", "--persist", str(tmp_path), "--", *write]) == ExitStatus.OK
    assert main(["dev", "--persist", str(tmp_path), "--", *read]) == ExitStatus.OK
    assert capfd.readouterr().out == "b'yes'\n"


@pytest.mark.promise(
    "The server of `rmq dev` ends with the command, and `rmq dev -- command` returns the status of the command."
)
def test_a_command_has_its_own_options_and_its_status_becomes_ours(capfd):
    code = "import os, sys; print(sys.argv[1:], os.environ['REDIS_URL'][:8]); sys.exit(7)"
    assert main(["dev", "--", *python(code), "--port", "x", "--json"]) == 7
    assert capfd.readouterr().out == "['--port', 'x', '--json'] redis://\n"


def test_a_command_that_died_of_a_signal_has_the_status_of_a_shell():
    assert main(["dev", "--", *python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")]) == 137


def test_the_command_gets_our_signals_and_may_finish(start_rmq):
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('ready', flush=True); signal.pause()"
    # With an interpreter, which is ready later than `rmq dev` listens to signals.
    process = start_rmq("dev", "--", *python(code), forked=False)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 5


def test_the_server_is_gone_when_its_command_has_ended(capfd):
    shell = "echo $REDIS_URL"
    assert main(["dev", "--", *shlex.split("sh -c"), shell]) == ExitStatus.OK
    port = int(capfd.readouterr().out.rpartition(":")[2].partition("/")[0])
    assert falls_silent(port)


def test_a_command_that_is_not_there_is_told_in_one_line(capfd):
    assert main(["dev", "--", "/no/such/program"]) == ExitStatus.USAGE
    assert capfd.readouterr().err == "rmq dev: /no/such/program: No such file or directory\n"


def test_a_port_that_is_taken_is_told(clean_server, capsys):
    assert main(["dev", "--port", str(clean_server.port)]) == ExitStatus.SERVER
    assert f"port {clean_server.port} is already in use; choose another with --port" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_refused(port, capsys):
    assert main(["dev", "--port", port]) == ExitStatus.USAGE
    assert "--port" in capsys.readouterr().err
