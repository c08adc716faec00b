"""What the page says about moving from the package of the same name, tried with that package in its own environment.

Both libraries have the same import names, so each runs in processes of its own, on one server. Of the other one, only
its documented behaviour is used. It is installed from the index, so only `make full` runs this.
"""

import os
import subprocess
import sys

import pytest
import redis

from bench.peer import peer_python
from redis_message_queue import RedisMessageQueue
from redis_message_queue.embedded import EmbeddedRedis
from redis_message_queue.values.errors import LuaScriptError
from tests.docs.pages import DOCS, blocks_of

pytestmark = [pytest.mark.in_full, pytest.mark.timeout(600)]

PAGE = DOCS / "explanation" / "coming-from-redis-message-queue.md"
OPEN = """
import os, signal
from redis import Redis
from redis_message_queue import RedisMessageQueue
client = Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
queue = RedisMessageQueue("orders", client=client, deduplication=False, visibility_timeout_seconds=2)
"""
PUBLISH = OPEN + "print([queue.publish(f'order {number}') for number in range(20)])"
DIE = OPEN + "with queue.process_message(): os.kill(os.getpid(), signal.SIGKILL)"
CONSUME = (
    OPEN
    + """
while client.llen("orders::pending") or client.llen("orders::processing"):
    with queue.process_message() as message:
        if message is not None:
            print(message, flush=True)
"""
)
ORDERS = [f"order {number}" for number in range(20)]


@pytest.fixture(scope="module")
def peer() -> str:
    return peer_python()


@pytest.fixture
def variables(clean_server: EmbeddedRedis) -> dict[str, str]:
    """Without PYTHONPATH, which would lead one library into the environment of the other."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"REDIS_URL": clean_server.url, "NEW_PYTHON": sys.executable}


def run(peer: str, code: str, variables: dict[str, str], status: int = 0) -> str:
    ended = subprocess.run([peer, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    assert ended.returncode == status, ended.stderr
    return ended.stdout


def new_queue(client: redis.Redis, name: str = "orders-v2") -> RedisMessageQueue:
    return RedisMessageQueue(name, client=client, message_wait_interval_seconds=0)


def contents(client: redis.Redis) -> dict[bytes, bytes | None]:
    """Everything of the queue but the state version of this library."""
    return {key: client.dump(key) for key in client.scan_iter("orders::*") if key != b"orders::meta"}


def test_both_work_side_by_side_under_two_names(peer, variables, text_client):
    """Nobody sees a message of the other, also if an old consumer crashed."""
    run(peer, PUBLISH, variables)
    new = new_queue(text_client)
    new.publish_many(["new 1", "new 2"])
    run(peer, DIE, variables, status=-9)
    handled = []
    new.run(lambda message: handled.append(message.payload), until_empty=True)
    assert handled == ["new 1", "new 2"]
    assert sorted(run(peer, CONSUME, variables).splitlines()) == sorted(ORDERS)
    assert text_client.exists("orders::pending", "orders::processing") == 0


def test_the_move_loses_and_doubles_nothing_although_everything_is_killed(peer, variables, text_client, tmp_path):
    for block in blocks_of(PAGE):
        if block.file:
            code = block.code.replace("visibility_timeout_seconds=60", "visibility_timeout_seconds=2")
            (tmp_path / block.file).write_text(code, encoding="utf-8")
    run(peer, PUBLISH, variables)
    run(peer, DIE, variables, status=-9)
    new = new_queue(text_client)
    # It dies when the new queue has the message, and the old one does not know yet.
    mover = tmp_path / "old_to_new.py"
    dying = mover.read_text(encoding="utf-8").replace(
        "            if not new",
        "            if new.stdout.readline(): os.kill(os.getpid(), 9)\n            if not new",
    )
    (tmp_path / "dying.py").write_text(dying, encoding="utf-8")
    for name, status in (("dying.py", -9), ("dying.py", -9), ("old_to_new.py", 0)):
        ended = subprocess.run([peer, name], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
        assert ended.returncode == status, ended.stderr
    assert text_client.exists("orders::pending", "orders::processing") == 0
    assert sorted(str(message.payload) for message in new.peek(100)) == sorted(ORDERS)


def test_an_answer_that_does_not_come_leaves_the_message_in_the_old_queue(peer, variables, text_client, tmp_path):
    block = next(one for one in blocks_of(PAGE) if one.file == "old_to_new.py")
    (tmp_path / "old_to_new.py").write_text(block.code, encoding="utf-8")
    (tmp_path / "publish_lines.py").write_text("raise SystemExit", encoding="utf-8")
    run(peer, PUBLISH, variables)
    ended = subprocess.run([peer, "old_to_new.py"], cwd=tmp_path, env=variables, capture_output=True, timeout=120)
    assert ended.returncode != 0
    assert text_client.llen("orders::pending") + text_client.llen("orders::processing") == 20


def test_the_name_can_be_taken_over_and_every_value_is_kept(peer, variables, client):
    run(peer, PUBLISH, variables)
    stored = client.lrange("orders::pending", 0, -1)
    with new_queue(client, "orders").process_message() as message:
        assert message is None
    letters = new_queue(client, "orders").records()
    assert {letter.reason for letter in letters} == {"foreign"}
    assert {letter.payload for letter in letters} == set(stored)
    assert len(letters) == len(stored)


def test_a_list_of_its_consumers_is_refused_before_anything_changes(peer, variables, client):
    run(peer, PUBLISH, variables)
    run(peer, DIE, variables, status=-9)
    before = contents(client)
    with pytest.raises(LuaScriptError, match="WRONGTYPE"), new_queue(client, "orders").process_message():
        pass
    assert contents(client) == before
    while client.lmove("orders::processing", "orders::pending", "RIGHT", "RIGHT") is not None:
        pass
    with new_queue(client, "orders").process_message() as message:
        assert message is None
    assert len(new_queue(client, "orders").records()) == 20
