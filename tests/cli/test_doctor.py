"""`rmq doctor` finds each problem on a real server that has it, and says what to change."""

import contextlib
import itertools
import re
import shutil
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from redis_message_queue import RedisMessageQueue
from redis_message_queue.cli.doctor.check_result import CheckLevel
from redis_message_queue.cli.doctor.permission_checks import check_permissions
from redis_message_queue.cli.doctor.queue_checks import check_key_types
from redis_message_queue.cli.doctor.server_checks import CHECKS, ServerInfo, check_clock, check_latency, version
from redis_message_queue.cli.exit_status import ExitStatus
from redis_message_queue.stored.keys import KEY_MAP, QueueKeys
from redis_message_queue.stored.permissions import ROLES, Role
from tests import depth
from tests.cli.conftest import Ended
from tests.conftest import StartServer
from tests.embedded.waiting import until
from tests.topologies.cluster import Cluster
from tests.topologies.replication import await_copy

pytestmark = pytest.mark.topic("Command line")


SOUND = {"maxmemory": "1gb", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec"}
Doctor = Callable[..., Ended]


@pytest.fixture
def doctor(rmq) -> Doctor:
    """Calls it for the server of a URL."""
    return lambda url, *words: rmq("doctor", *words, "--json", "--url", url)


def told(ended: Ended, check: str) -> list[tuple[str, str, str]]:
    """CheckLevel, finding and advice of one check."""
    return [(row["level"], row["found"], row["change"]) for row in ended.documents if row["check"] == check]


def the_one(ended: Ended, level: str, check: str) -> tuple[str, str]:
    """The one finding of that level of a check: what was found, and what to change."""
    ((found, change),) = [(found, change) for is_level, found, change in told(ended, check) if is_level == level]
    return found, change


# A primary waits five seconds for more replicas before it sends its data, unless it is told not to.
AT_ONCE = {"repl-diskless-sync-delay": 0}


@contextlib.contextmanager
def replica_of(start_server: StartServer, primary: redis.Redis, port: int) -> Iterator[redis.Redis]:
    copy = start_server(config={"replicaof": f"127.0.0.1 {port}"})
    with copy.client() as client:
        await_copy(client)
        assert until(lambda: primary.info("replication").get("slave0", {}).get("state") == "online")
        yield client
        copy.resume()


# A server that is as it should be


@pytest.mark.promise(
    "`rmq doctor` reports no problem for a healthy server, and its trial leaves only replies that expire."
)
def test_a_sound_server_has_no_problems(start_server, doctor):
    ended = doctor(start_server(config=SOUND).url, "orders")
    assert ended.status == ExitStatus.OK
    assert [row for row in ended.documents if row["level"] == "problem"] == []
    assert all((row["change"] is None) == (row["level"] == "ok") for row in ended.documents)
    checks = {row["check"] for row in ended.documents}
    assert {check.__name__ for check in CHECKS} - checks == {"settings"}, "that one speaks when it could not look"
    assert {"clock", "latency", "cluster", "timeouts", "keys", "scripts"} <= checks


@pytest.mark.promise(
    "`rmq doctor` reports no problem for a healthy server, and its trial leaves only replies that expire."
)
def test_the_trial_leaves_nothing_but_answers_that_expire(clean_server, client, doctor):
    doctor(clean_server.url, "orders")
    left = client.keys("*")
    assert all(b"::reply::" in key and client.ttl(key) > 0 for key in left), left


@pytest.mark.promise(
    "`rmq doctor` reports no problem for a healthy server, and its trial leaves only replies that expire."
)
def test_read_only_writes_nothing(clean_server, client, doctor):
    ended = doctor(clean_server.url, "orders", "--read-only")
    assert client.keys("*") == []
    assert told(ended, "scripts") == []


def test_people_get_a_table_and_a_count(rmq):
    ended = rmq("doctor", "--read-only")
    assert ended.status == ExitStatus.FAILED
    assert ended.out.splitlines()[0].split() == ["level", "check", "found", "change"]
    assert re.fullmatch(r"problems: 1, advice: [2-9]\n", ended.err), "a busy machine may add one"


# Its disk


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
def test_a_server_without_persistence_is_a_problem(start_server, doctor):
    ended = doctor(start_server().url, "--read-only")
    assert ended.status == ExitStatus.FAILED
    assert the_one(ended, "problem", "persistence") == (
        "none: a restart loses every message",
        "set appendonly yes and appendfsync everysec",
    )


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
def test_snapshots_alone_are_not_enough(start_server, doctor):
    ended = doctor(start_server(config={"save": "3600 1"}).url, "--read-only")
    found, change = the_one(ended, "advice", "persistence")
    assert found == "only snapshots (save 3600 1)"
    assert "appendonly yes" in change


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
def test_an_append_only_file_that_is_never_synced_is_not_enough(start_server, doctor):
    server = start_server(config=SOUND | {"appendfsync": "no"})
    assert "appendfsync everysec" in the_one(doctor(server.url, "--read-only"), "advice", "persistence")[1]


@pytest.mark.parametrize("policy", ["everysec", "always"])
def test_an_append_only_file_that_is_synced_is_well(start_server, doctor, policy):
    server = start_server(config=SOUND | {"appendfsync": policy})
    assert [level for level, *_ in told(doctor(server.url, "--read-only"), "persistence")] == ["ok"]


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
def test_a_snapshot_that_could_not_be_written_is_a_problem(start_server, doctor):
    server = start_server(config={"save": "3600 1"})
    shutil.rmtree(server.directory)
    with server.client() as client:
        client.set("a", "b")
        client.bgsave()
        assert until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    ended = doctor(server.url, "--read-only")
    found, change = the_one(ended, "problem", "persistence")
    assert found == "the last snapshot could not be written"
    assert "log" in change
    assert "MISCONF" in the_one(ended, "problem", "latency")[0], "such a server refuses even a PING"


# Its memory


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
@pytest.mark.parametrize(
    ("policy", "limit", "level"),
    [
        ("allkeys-lru", "100mb", "problem"),
        ("volatile-ttl", "100mb", "problem"),
        ("allkeys-random", "0", "advice"),
        ("noeviction", "100mb", "ok"),
    ],
)
def test_a_server_that_throws_keys_away_is_a_problem(start_server, doctor, policy, limit, level):
    server = start_server(config={"maxmemory": limit, "maxmemory-policy": policy})
    ((found_level, found, change),) = told(doctor(server.url, "--read-only"), "eviction")
    assert found_level == level
    assert policy in found
    assert change == (None if level == "ok" else "set maxmemory-policy noeviction")


def test_a_server_without_a_limit_is_advised_to_have_one(start_server, doctor):
    found, change = the_one(doctor(start_server().url, "--read-only"), "advice", "memory")
    assert "no limit" in found
    assert "maxmemory" in change


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
@pytest.mark.parametrize(("share", "level"), [(0.5, "ok"), (0.9, "advice"), (0.98, "problem")])
def test_a_server_that_is_nearly_full_is_noticed(start_server, doctor, share, level):
    server = start_server()
    with server.client() as client:
        client.setrange("big", 20 << 20, "x")  # so that what connections take does not matter
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
    assert [found for found, *_ in told(doctor(server.url, "--read-only"), "memory")] == [level]


@pytest.mark.promise("`rmq doctor` detects missing persistence, eviction and low memory.")
def test_memory_in_fragments_is_noticed(start_server, doctor):
    server = start_server(config={"maxmemory": "1gb"})
    with server.client() as client:
        fill = "for i = 1, 60000 do redis.call('SET', i, string.rep('x', 1500)) end"
        thin_out = "for i = 1, 60000 do if i % 2 == 0 then redis.call('DEL', i) end end"
        client.eval(fill, 0)
        client.eval(thin_out, 0)
        # What the server says of its pages is looked up ten times a second.
        assert until(lambda: client.info("memory")["used_memory_rss"] > 80 << 20)
    found, change = the_one(doctor(server.url, "--read-only"), "advice", "memory")
    assert found.startswith("fragmented: ")
    assert "activedefrag" in change


def test_a_full_server_fails_the_trial(start_server, doctor):
    server = start_server()
    with server.client() as client:
        client.config_set("maxmemory", 1)
    found, _ = the_one(doctor(server.url), "problem", "scripts")
    assert "maxmemory" in found


# Its replicas


def test_a_single_server_is_advised_to_have_a_replica(start_server, doctor):
    assert "none" in the_one(doctor(start_server().url, "--read-only"), "advice", "replicas")[0]


@pytest.mark.promise("`rmq doctor` detects lagging or unconfirmed replicas, and a URL that points to a replica.")
def test_a_replica_is_no_place_to_publish(start_server, doctor):
    primary = start_server(config=AT_ONCE)
    copy = start_server(config={"replicaof": f"127.0.0.1 {primary.port}"})
    ended = doctor(copy.url, "--read-only")
    assert the_one(ended, "problem", "replicas")[1] == "use the URL of its primary"


@pytest.mark.promise("`rmq doctor` detects lagging or unconfirmed replicas, and a URL that points to a replica.")
def test_a_primary_that_does_not_wait_for_its_replica_is_advised(start_server, doctor):
    primary = start_server(config=AT_ONCE)
    with primary.client() as client, replica_of(start_server, client, primary.port):
        assert "confirm_replicas" in the_one(doctor(primary.url, "--read-only"), "advice", "replicas")[1]
        client.config_set("min-replicas-to-write", 1)
        assert [level for level, *_ in told(doctor(primary.url, "--read-only"), "replicas")] == ["ok"]


@pytest.mark.promise("`rmq doctor` detects lagging or unconfirmed replicas, and a URL that points to a replica.")
def test_a_replica_that_lags_behind_is_a_problem(start_server, doctor):
    primary = start_server(config=AT_ONCE)
    copy = start_server(config={"replicaof": f"127.0.0.1 {primary.port}"})
    with primary.client() as client, copy.client() as reader:
        await_copy(reader)
        assert until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        copy.pause()
        client.set("big", b"x" * (4 << 20))
        found, change = the_one(doctor(primary.url, "--read-only"), "problem", "replicas")
        copy.resume()
    assert f"127.0.0.1:{copy.port} is 4,1" in found
    assert "failover" in change


# Its connections


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_server_that_closes_idle_connections_is_noticed(start_server, doctor):
    ended = doctor(start_server(config={"timeout": 10}).url, "--read-only")
    assert "idle for 10 s" in the_one(ended, "advice", "connections")[0]


def test_a_server_that_keeps_dead_connections_is_noticed(start_server, doctor):
    ended = doctor(start_server(config={"tcp-keepalive": 0}).url, "--read-only")
    assert the_one(ended, "advice", "connections")[1] == "set tcp-keepalive 300"


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_server_with_few_connections_left_is_noticed(start_server, doctor):
    server = start_server(config={"maxclients": 10})
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(server.client()).ping()
        assert "maxclients" in the_one(doctor(server.url, "--read-only"), "advice", "connections")[1]


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_short_socket_timeout_makes_a_waiting_consumer_ask_often(clean_server, doctor):
    ended = doctor(f"{clean_server.url}?socket_timeout=0.5", "--read-only")
    found, change = the_one(ended, "advice", "timeouts")
    assert "2 times a second" in found or "3 times a second" in found
    assert "2 s or more" in change


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_server_that_stalls_is_noticed(client, text_client):
    """Paused while it is asked, as one that swaps. It is the longest of twenty trips that shows it."""
    client.ping()
    text_client.client_pause(1000, all=True)
    (found,) = check_latency(client)
    assert found.level == "advice"
    (longest,) = re.findall(r"the longest of 20 ([\d.]+) ms", found.found)
    assert float(longest) > 100


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_server_that_is_always_slow_is_noticed(client):
    ticks = itertools.count()
    (found,) = check_latency(client, steady=lambda: next(ticks) * 0.02)
    assert (found.level, found.found) == ("advice", "round trip 20.0 ms, the longest of 20 20.0 ms")
    assert "closer" in str(found.change)


# Its clock


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_clock_that_is_apart_from_ours_is_noticed(client):
    """It is ours that is wrong here; that is the same."""
    found = {one.level: one for one in check_clock(client, now=lambda: time.time() - 90)}
    assert found[CheckLevel.ADVICE].found == "+90.0 s from this machine's"
    assert "at=" in str(found[CheckLevel.ADVICE].change)


@pytest.mark.promise(
    "`rmq doctor` detects clock jumps and differences, stalls, and connections that are closed or run out."
)
def test_a_clock_that_jumps_is_a_problem(client):
    looks = itertools.count()
    found = list(check_clock(client, steady=lambda: time.monotonic() - (5 if next(looks) > 20 else 0)))
    assert found[0].level == "problem"
    assert re.search(r"jumped by [45]\.\d s", found[0].found)  # of which a busy machine takes a part


# What it is and what it permits


def test_a_server_too_old_is_a_problem(client):
    """None so old can be had; this one says that it is."""
    server = ServerInfo(client)
    server.info = {"redis_version": "6.0.16"}
    (found,) = version(server)
    assert (found.level, found.found) == ("problem", "Redis 6.0.16")
    server.info = {"redis_version": "7.2.4", "valkey_version": "8.0.1"}
    assert [(one.level, one.found) for one in version(server)] == [("ok", "Valkey 8.0.1")]


def permit(client: redis.Redis, *rules: str) -> None:
    client.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *rules)


@pytest.mark.promise("`rmq doctor` detects missing permissions and continues where it may not look.")
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (("~*", "+@all", "-evalsha"), "evalsha"),
        (("~*", "+@all", "-blpop"), "blpop"),
        (("~*", "+@all", "-lpush"), ""),
        (("~mails*", "+@all"), "key"),
    ],
)
def test_a_user_who_may_not_use_a_queue_is_told_so(start_server, doctor, rules, said):
    server = start_server()
    with server.client() as client:
        permit(client, *rules)
    ended = doctor(f"redis://clerk:secret@127.0.0.1:{server.port}/0", "orders")
    found, change = the_one(ended, "problem", "scripts")
    assert said in found.lower()
    assert "ACL SETUSER" in change
    assert "secret" not in ended.out + ended.err


@pytest.mark.promise("`rmq doctor` detects missing permissions and continues where it may not look.")
def test_a_user_who_may_not_look_is_told_so_and_the_rest_goes_on(start_server, doctor):
    server = start_server()
    with server.client() as client:
        permit(client, "~orders*", "+@all", "-@dangerous")
    ended = doctor(f"redis://clerk:secret@127.0.0.1:{server.port}/0", "orders")
    assert ended.status == ExitStatus.OK
    found, change = the_one(ended, "advice", "server")
    assert "not permitted to check this" in found and change == "ACL SETUSER <user> +info"
    assert [level for level, *_ in told(ended, "scripts")] == ["ok"]
    with server.client() as client:
        permit(client, "~orders*", "+@all", "-@dangerous", "-zadd")
    found, change = the_one(doctor(f"redis://clerk:secret@127.0.0.1:{server.port}/0", "orders"), "problem", "scripts")
    assert "ZADD" in found and change == "ACL SETUSER <user> +zadd"
    with server.client() as client:
        permit(client, "~orders*", "+@all", "-config")
    assert (
        "CONFIG GET is not permitted"
        in the_one(doctor(f"redis://clerk:secret@127.0.0.1:{server.port}/0"), "advice", "settings")[0]
    )


# Queues


@pytest.mark.promise(
    "`rmq doctor` detects keys of the wrong type, messages under the other hash-tag spelling, and a cluster with "
    "uncovered slots."
)
def test_a_key_of_the_wrong_type_is_a_problem(clean_server, client, doctor, subtests):
    for word in (kind.word for kind in KEY_MAP if "<" not in kind.word):
        with subtests.test(word):
            client.flushdb()
            client.sadd(f"orders::{word}", "somebody else's")
            (wrong,) = check_key_types(client, QueueKeys.of("orders"))
            assert (wrong.level, wrong.check) == ("problem", "keys")
            assert f"orders::{word} is a set" in wrong.found
            assert "who wrote it" in str(wrong.change)
    assert (
        f"orders::{word} is a set" in the_one(doctor(clean_server.url, "orders", "--read-only"), "problem", "keys")[0]
    )


def test_the_keys_of_a_queue_in_use_are_well(clean_server, text_client, doctor):
    queue = RedisMessageQueue(
        "orders", client=text_client, journal=True, enable_completed_queue=True, tenant_weights={"acme": 2}
    )
    queue.publish_many(["one", "two"], tenant="acme")
    queue.publish("later", delay_seconds=60)
    with queue.process_message():
        assert [level for level, *_ in told(doctor(clean_server.url, "orders"), "keys")] == ["ok"]
    assert queue.stats().pending == 1


@pytest.mark.promise(
    "`rmq doctor` detects keys of the wrong type, messages under the other hash-tag spelling, and a cluster with "
    "uncovered slots."
)
def test_messages_under_the_other_spelling_are_found(clean_server, text_client, doctor):
    RedisMessageQueue("orders", client=text_client, hash_tag=True).publish("out of sight")
    found, _ = the_one(doctor(clean_server.url, "orders", "--read-only"), "problem", "hash tag")
    assert "{orders}::pending" in found
    assert told(doctor(clean_server.url, "orders", "--read-only", "--hash-tag"), "hash tag") == []


# Clusters


@pytest.fixture(scope="module")
def cluster(server_setting) -> Iterator[Cluster]:
    with Cluster(server_setting) as started:
        yield started


def test_every_primary_of_a_cluster_is_looked_at(cluster, doctor):
    cluster.flush()
    ended = doctor(cluster.nodes[0].server.url, "orders")
    looked_at = {row["server"] for row in ended.documents if row["check"] == "persistence"}
    assert looked_at == {f"127.0.0.1:{node.port}" for node in cluster.primaries}
    assert [level for level, *_ in told(ended, "cluster")] == ["ok"]
    assert [level for level, *_ in told(ended, "scripts")] == ["ok"]


def test_a_name_that_a_cluster_cannot_have_is_a_problem(cluster, doctor):
    ended = doctor(cluster.nodes[0].server.url, "or{ders", "--read-only")
    assert "braces" in the_one(ended, "problem", "hash tag")[0]


@pytest.mark.promise(
    "`rmq doctor` detects keys of the wrong type, messages under the other hash-tag spelling, and a cluster with "
    "uncovered slots."
)
def test_messages_from_before_the_cluster_are_found(cluster, doctor):
    cluster.flush()
    cluster.onlooker.lpush("orders::pending", "from before")
    ended = doctor(cluster.nodes[0].server.url, "orders", "--read-only")
    assert "there are messages in orders::pending" in the_one(ended, "problem", "hash tag")[0]


@pytest.mark.promise(
    "`rmq doctor` detects keys of the wrong type, messages under the other hash-tag spelling, and a cluster with "
    "uncovered slots."
)
def test_a_cluster_that_does_not_serve_all_slots_is_a_problem(cluster, doctor):
    node = cluster.nodes[0]
    node.cluster("DELSLOTS", 0)
    try:
        assert until(lambda: b"cluster_state:fail" in node.cluster("INFO"))
        ended = doctor(node.server.url, "--read-only")
    finally:
        node.cluster("ADDSLOTS", 0)
        cluster.settle()
    found, change = the_one(ended, "problem", "cluster")
    assert f"127.0.0.1:{node.port}: state fail, 16,383 of 16,384 slots" in found
    assert "CLUSTER NODES" in change


# Permissions


def as_role(client: redis.Redis, role: Role, *rules: str) -> None:
    permit(client, *role.rules("orders").split(), *rules)


def asked(server, role: Role, *, user: str | None = None) -> list[tuple[str, str, str | None]]:
    """The findings about a role, as the clerk's client or as the administrator's."""
    name = {} if user else {"username": "clerk", "password": "secret"}
    with server.client(**name) as client:
        found = check_permissions(client, QueueKeys.of("orders"), [role.name], user)
        return [(one.level, one.found, one.change) for one in found]


# What a user needs besides, for each of the three ways to ask; the last two work without it.
WAYS = {"dry run": ("+acl|dryrun", "+acl|whoami"), "transaction": ("+multi", "+discard"), "script": ()}


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
@pytest.mark.parametrize("way", WAYS)
def test_every_command_that_is_missing_is_found(clean_server, client, role, way):
    """Also those that a trial with a message does not meet, and without running anything.

    `make test` removes each command in one of the ways, and `make full` in all of them.
    """
    version = clean_server.version if clean_server.flavour == "redis" else (7, 0, 0)
    if version < (7, 0, 0) and way != "transaction":
        assert not client.keys("*"), "Redis 6.2 has that way alone"
        return
    more = () if role is ROLES["journal"] and way == "script" else WAYS[way]
    as_role(client, role, *more)
    assert [level for level, *_ in asked(clean_server, role)] == ["ok"]
    place = list(WAYS).index(way) if version >= (7, 0, 0) else 0
    for command in role.commands if depth.FULL else role.commands[place :: len(WAYS)]:
        if command in ("MULTI", "EXEC") or (way == "script" and command in ("EVAL", "HMGET")):
            continue
        as_role(client, role, *more, f"-{command.lower()}")
        ((level, found, change),) = asked(clean_server, role)
        assert (level, change) == ("problem", f"ACL SETUSER <user> +{command.lower()}"), command
        assert f"not permitted: {command};" in found
    assert client.keys("*") == []


def test_keys_that_are_out_of_reach_are_found(clean_server, client):
    """A pattern for some keys of the queue is not enough."""
    as_role(client, ROLES["consumer"], "resetkeys", "~orders::p*", "+multi", "+discard")
    ((level, found, change),) = asked(clean_server, ROLES["consumer"])
    assert level == "problem"
    assert "may not access orders::leases" in found and "orders::pending" not in found
    assert change == "ACL SETUSER <user> ~orders::*"


def test_an_administrator_asks_for_another_user(clean_server, client, doctor):
    if clean_server.flavour == "redis" and clean_server.version < (7, 0, 0):
        ended = doctor(clean_server.url, "orders", "--role", "producer", "--user", "clerk")
        assert the_one(ended, "problem", "permissions")
        return
    as_role(client, ROLES["producer"], "-lpush")
    ended = doctor(clean_server.url, "orders", "--role", "producer", "--user", "clerk")
    assert ended.status == ExitStatus.FAILED
    assert "LPUSH" in the_one(ended, "problem", "permissions")[0]
    assert told(ended, "scripts") == [], "no trial as somebody else"


def test_a_user_whose_permissions_cannot_be_seen_is_told_how(clean_server, client):
    permit(client, "~orders::*", "-@all", "+get")
    ((level, found, change),) = asked(clean_server, ROLES["producer"])
    assert (level, "could not be checked" in found, "--user" in str(change)) == ("advice", True, True)
