"""rmq exporter serves /metrics with the counts of all queues."""

import signal
import socket
import urllib.error
import urllib.request

import pytest

from redis_message_queue.cli.exit_status import ExitStatus
from tests.cli.workers import finish, said

pytestmark = pytest.mark.topic("Command line")


@pytest.mark.promise("`rmq exporter` shows every queue of a server: its messages, its oldest one, its workers.")
def test_the_queues_of_a_server_are_served_until_a_signal(start_rmq, queue):
    queue.publish_many(["a", "b"])
    process = start_rmq("exporter", "other", "--port", "0")
    url = said(process, "metrics of").partition(" at ")[2].partition(",")[0]
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    assert 'rmq_messages{queue="orders",state="pending"} 2.0' in text
    assert 'rmq_stats_up{queue="other"} 1.0' in text
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url.removesuffix("/metrics"), timeout=60)
    with refused.value as answer:
        assert (answer.code, answer.read()) == (404, b"the only page is /metrics\n")
    process.send_signal(signal.SIGTERM)
    assert finish(process) == ("", "")
    assert process.returncode == ExitStatus.OK


def test_a_port_that_is_taken_is_told(rmq, clean_server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = rmq("exporter", "--port", str(taken.getsockname()[1]))
    assert ended.status == ExitStatus.FAILED
    assert "cannot listen on 127.0.0.1 port" in ended.err and ended.err.count("\n") == 1
