"""Every error reply of a server is classified, and transient ones are retried."""

import contextlib

import pytest
import redis
from redis import exceptions
from redis._parsers.base import BaseParser

from redis_message_queue import EventOperation, EventOutcome, LuaScriptError
from redis_message_queue.redis_py import server_errors, wire
from tests.concurrency import LIMIT_SECONDS, start, until
from tests.faults.shells import WAYS
from tests.tables import row

# Every first word of an error reply in Redis 6.2 to 8 and Valkey 7 to 9 that a queue can get.
WORDS = {
    *("ERR", "WRONGTYPE", "OOM", "BUSY", "MISCONF", "LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN"),
    *("MOVED", "ASK", "NOREPLICAS", "NOAUTH", "WRONGPASS", "NOPERM", "EXECABORT", "UNKILLABLE", "NOTBUSY", "NOSCRIPT"),
    *("INPROG", "NOGOODSLAVE", "UNBLOCKED", "BUSYKEY", "BUSYGROUP", "NOGROUP", "CROSSSLOT", "DENIED", "REDIRECT"),
    *("NOPROTO", "NOMASTERLINK", "IOERR"),
}
WAITED_FOR = {
    *("BUSY", "MISCONF", "LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "NOSCRIPT"),
    *("INPROG", "NOGOODSLAVE", "UNBLOCKED", "REDIRECT", "NOMASTERLINK"),
}


def parsed(reply):
    """The exception that redis-py makes of it."""
    return BaseParser.parse_error(reply)


def test_every_error_reply_is_classified():
    assert set(server_errors.DECISIONS) == WORDS
    assert {word for word, decision in server_errors.DECISIONS.items() if decision.transient} == WAITED_FOR
    assert all(decision.reason for decision in server_errors.DECISIONS.values())


def test_a_reply_is_classified_alone_and_inside_a_script_error(subtests: pytest.Subtests):
    """Redis 6.2 puts the reply behind its own text, Redis 7 puts its own text behind the reply."""
    for word in sorted(WORDS - {"MOVED", "ASK"}):
        with row(subtests, word=word):
            text = f"{word} something is the matter"
            expected = word in WAITED_FOR
            assert wire.is_transient(parsed(text)) is expected
            assert wire.is_transient(parsed(f"{text} script: f00d, on @user_script:12.")) is expected
            wrapped = f"ERR Error running script (call to f_f00d): @user_script:12: @user_script: 12: -{text} "
            assert wire.is_transient(parsed(wrapped)) is expected


@pytest.mark.parametrize(
    "text",
    [
        "ERR value is not BUSY at all",
        "WRONGTYPE Operation against a key holding the wrong kind of value, LOADING it",
        "BUSYKEY Target key name already exists.",
        "READONLYISH is no word",
    ],
)
def test_a_word_elsewhere_in_a_text_decides_nothing(text):
    assert wire.is_transient(exceptions.ResponseError(text)) is False


def test_refusals_of_our_scripts_are_not_repeated():
    assert (
        wire.is_transient(LuaScriptError("Redis refused claim: BUSY is the name of a queue in this script: ")) is False
    )


@pytest.fixture(params=["sync-packed", "sync-ordinary", "asyncio-packed", "asyncio-ordinary"])
def way(request):
    return WAYS[request.param]


class Busy:
    """A server on which another client's script runs until it is killed."""

    def __init__(self, server):
        self._server = server

    def __enter__(self):
        client = self._server.client(socket_timeout=None, retry=None)
        self._script = start(client.eval, "while true do end", 0)
        with self._server.client(retry=None) as other:
            until(lambda: self._refuses(other))
        return self

    @staticmethod
    def _refuses(client):
        try:
            client.get("anything")
        except exceptions.ResponseError as error:
            return str(error).startswith("BUSY")
        return False

    def __exit__(self, *_):
        with self._server.client() as other:
            other.script_kill()
        assert isinstance(self._script.exception(LIMIT_SECONDS), exceptions.ResponseError)


def test_a_busy_server_is_retried(start_server, way, caplog):
    """Publish, claim, ack and heartbeat continue when the script has ended, even on a new connection."""
    server = start_server(config={"lua-time-limit": 20})
    with contextlib.closing(way(server.port)) as shell:
        events = []
        queue = shell.queue(
            shell.client(socket_timeout=5),
            {"message_visibility_timeout_seconds": 30},
            heartbeat_interval_seconds=0.05,
            on_event=lambda event: events.append((event.operation, event.outcome)),
        )

        def tried(operation):
            return any(f"{operation} failed (" in record.getMessage() for record in caplog.records)

        def during(operation, work):
            with Busy(server):
                outcome = start(work)
                until(lambda: tried(operation))
            return outcome.result(LIMIT_SECONDS)

        shell.publish(queue, "first")
        assert during("publish", lambda: shell.publish(queue, "second")) is True
        assert during("claim", lambda: shell.process(queue)) == b"first"
        events.clear()
        with contextlib.ExitStack() as busy:

            def begin(message):
                busy.enter_context(Busy(server))

            outcome = start(shell.process, queue, begin, lambda: not tried("renew"))
            until(lambda: tried("settle"))
        assert outcome.result(LIMIT_SECONDS) == b"second"
        assert (EventOperation.LEASE_RENEW, EventOutcome.FAILURE) not in events
        assert (EventOperation.ACK, EventOutcome.SUCCESS) in events


def test_a_server_that_cannot_save_is_retried(start_server, way, caplog):
    """MISCONF: a snapshot failed, and writes are refused until the next one succeeds."""
    server = start_server(config={"save": "3600 1", "stop-writes-on-bgsave-error": "yes", "dbfilename": "taken"})
    obstacle = server.directory / "taken"
    obstacle.mkdir()
    (obstacle / "something").touch()
    with server.client() as admin, contextlib.closing(way(server.port)) as shell:
        queue = shell.queue(enable_completed_queue=True)
        shell.publish(queue, "first")

        def save(expected):
            admin.bgsave()
            until(lambda: admin.info("persistence")["rdb_bgsave_in_progress"] == 0)
            assert admin.info("persistence")["rdb_last_bgsave_status"] == expected

        save("err")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            admin.set("anything", 1)
        published = start(shell.publish, queue, "second")
        until(lambda: any("publish failed (" in record.getMessage() for record in caplog.records))
        assert not published.done()
        (obstacle / "something").unlink()
        obstacle.rmdir()
        save("ok")
        assert published.result(LIMIT_SECONDS) is True
        assert [shell.process(queue), shell.process(queue)] == [b"first", b"second"]
