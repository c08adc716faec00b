"""The recipes with PostgreSQL lose and double nothing when their processes are killed. Only `make full` runs them."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from tests import fork_server
from tests.concurrency import until
from tests.docs.test_recipes import BIN, environment, running, save

pytestmark = pytest.mark.in_full
# Debian does not put the programs of its servers on PATH.
PLACES = os.pathsep.join(
    [os.environ["PATH"], *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
)
# Publishes a batch and dies before it deletes the rows.
DYING_RELAY = """
import os, signal
import outbox_relay
from redis_message_queue import RedisMessageQueue
publish = RedisMessageQueue.publish_many
def publish_and_die(self, messages):
    publish(self, messages)
    os.kill(os.getpid(), signal.SIGKILL)
RedisMessageQueue.publish_many = publish_and_die
outbox_relay.main()
"""
# Commits and dies before the queue hears of it.
DYING_HANDLER = """
import os, signal
import payments_inbox
def book(message):
    payments_inbox.book(message)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    """A real server with an empty database. Without PostgreSQL on the machine these tests fail: a skip is no pass."""
    initdb = shutil.which("initdb", path=PLACES)
    assert initdb, "install PostgreSQL (on Debian: apt install postgresql)"
    home = Path(tempfile.mkdtemp(prefix="recipes-"))
    # PostgreSQL refuses to run as root.
    owner = pwd.getpwnam("nobody") if os.getuid() == 0 else None
    if owner:
        os.chown(home, owner.pw_uid, owner.pw_gid)
    as_owner = {"user": owner.pw_uid, "group": owner.pw_gid} if owner else {}
    data = home / "data"
    made = [initdb, "-D", str(data), "-U", "shop", "--auth=trust", "--no-sync"]
    subprocess.run(made, check=True, capture_output=True, cwd=home, **as_owner)  # type: ignore[call-overload]
    options = ["-D", str(data), "-k", str(home), "-c", "listen_addresses=", "-c", "fsync=off"]
    program = [str(Path(initdb).with_name("postgres")), *options]
    server = subprocess.Popen(program, cwd=home, stderr=subprocess.DEVNULL, **as_owner)  # type: ignore[call-overload]
    url = f"host={home} user=shop dbname=postgres"
    try:
        until(lambda: answers(url), "PostgreSQL answers")
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        shutil.rmtree(home)


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_killed_relay_loses_and_doubles_nothing(
    database_url: str, clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between the publish and the delete, three times; an order that was rolled back has no message."""
    save("outbox", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from outbox_shop import order  # type: ignore[import-not-found]

    env = environment(clean_server.url, DATABASE_URL=database_url)
    pending = RedisMessageQueue("orders", client=client)
    with psycopg.connect(database_url, autocommit=True) as database:
        database.execute("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, article text)")
        database.execute((tmp_path / "outbox.sql").read_text(encoding="utf-8"))
        for number in range(3):
            order(database, f"article {number}")
            with pytest.raises(LookupError), database.transaction():
                order(database, "never ordered")
                raise LookupError
            died = fork_server.run([sys.executable, "-c", DYING_RELAY], cwd=tmp_path, env=env)
            assert died.returncode == -signal.SIGKILL
        with running([sys.executable, "outbox_relay.py"], tmp_path, env):
            order(database, "article 3")
            until(lambda: database.execute("SELECT count(*) FROM outbox").fetchone() == (0,))
        ordered = [article for (article,) in database.execute("SELECT article FROM orders ORDER BY id")]
    assert ordered == [f"article {number}" for number in range(4)]
    assert [json.loads(message.payload or b"")["article"] for message in pending.peek(10)] == ordered


def test_a_killed_handler_books_once(
    database_url: str, clean_server: EmbeddedRedis, client: redis.Redis, tmp_path: Path
) -> None:
    """It dies after the commit, before the queue hears of it, and the message is delivered again."""
    save("inbox", tmp_path)
    (tmp_path / "dying.py").write_text(DYING_HANDLER, encoding="utf-8")
    env = environment(clean_server.url, DATABASE_URL=database_url)
    RedisMessageQueue("payments", client=client).publish({"name": "anna", "amount": 10})
    with psycopg.connect(database_url, autocommit=True) as database:
        database.execute("CREATE TABLE inbox (message_id text PRIMARY KEY, handled_at timestamptz DEFAULT now())")
        database.execute("CREATE TABLE account (name text PRIMARY KEY, balance integer NOT NULL)")
        database.execute("INSERT INTO account VALUES ('anna', 0)")
        balance = "SELECT balance FROM account"
        rmq = [str(BIN / "rmq"), "worker", "--visibility-timeout-seconds", "1"]
        dying = [*rmq, "dying:book", "payments", "--max-delivery-count", "2"]
        # A worker whose process was killed says so with its exit status.
        with running(dying, tmp_path, env, statuses=(1, 0)):
            until(lambda: database.execute(balance).fetchone() == (10,))
        with running([*rmq, "payments_inbox:book", "payments", "--max-delivery-count", "0"], tmp_path, env):
            until(lambda: not client.exists("payments::pending", "payments::processing"))
        assert database.execute(balance).fetchone() == (10,)
        assert database.execute("SELECT count(*) FROM inbox").fetchone() == (1,)
