"""A hand-off that cannot be made as a whole is refused, and nothing has changed."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.contract.hand_offs import complete, everything, hand_off, waiting
from tests.contract.shells import (
    Awaited,
    Sent,
    Shell,
    SubclassedAsyncRedis,
    SubclassedRedis,
    silent_gateway,
    until,
)

pytestmark = pytest.mark.topic("Hand-off")


# What is refused


@pytest.mark.promise("A result that cannot be published refuses the whole hand-off with the error of `publish()`.")
async def test_results_that_are_no_list_are_refused(shell: Shell) -> None:
    """With a typed error that names the parameter; the message is still in hand. A generator is a list as well."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        for wrong in (None, 7, "results", b"results", {results.queue: "m"}):
            with pytest.raises(shell.module.ConfigurationError, match="publish") as caught:
                await Awaited(batch[0]).complete(publish=wrong)
            assert isinstance(caught.value, TypeError)
        await Awaited(batch[0]).complete(publish=((results.queue, text) for text in ("a", "b")))
    assert await waiting(results) == [b"a", b"b"]


@pytest.mark.promise("A result that cannot be published refuses the whole hand-off with the error of `publish()`.")
async def test_a_result_that_cannot_be_published_refuses_all(shell: Shell) -> None:
    """Whatever is wrong with it, with the error that publish would give, before anything is done."""
    module = shell.module
    queue, results = shell.queue(), shell.queue("results", max_payload_bytes=10)
    moment = datetime.now(UTC)
    wrong: list[tuple[Any, type[Exception]]] = [
        ((), module.ConfigurationError),
        ((results.queue,), module.ConfigurationError),
        ((results.queue, "m", {}, "more"), module.ConfigurationError),
        ("no pair", module.ConfigurationError),
        (results.queue, module.ConfigurationError),
        (("results", "m"), module.ConfigurationError),
        ((shell.client, "m"), module.ConfigurationError),
        ((results.queue, 7), module.PayloadTypeError),
        ((results.queue, b"bytes"), module.PayloadTypeError),
        ((results.queue, {1: 2}), module.PayloadTypeError),
        ((results.queue, "\ud800"), module.PayloadValueError),
        ((results.queue, "longer than ten"), module.PayloadTooLargeError),
        ((results.queue, "m", None), module.ConfigurationError),
        ((results.queue, "m", 7), module.ConfigurationError),
        ((results.queue, "m", "tenant"), module.ConfigurationError),
        ((results.queue, "m", {"repeat_of": None}), module.ConfigurationError),
        ((results.queue, "m", {"queue": "q"}), module.ConfigurationError),
        ((results.queue, "m", {"tenant": ""}), module.PayloadValueError),
        ((results.queue, "m", {"tenant": 7}), module.PayloadTypeError),
        ((results.queue, "m", {"delay_seconds": -1}), module.ConfigurationError),
        ((results.queue, "m", {"delay_seconds": True}), module.ConfigurationError),
        ((results.queue, "m", {"at": moment.replace(tzinfo=None)}), module.ConfigurationError),
        ((results.queue, "m", {"at": moment, "delay_seconds": 1}), module.ConfigurationError),
    ]
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        before = everything(shell)
        for one, kind in wrong:
            with pytest.raises(kind):
                await Awaited(batch[0]).complete(publish=[(results.queue, "good"), one])
        assert everything(shell) == before
        await complete(batch[0], (results, "good"))
    assert await waiting(results) == [b"good"]


@pytest.mark.promise("A result that cannot be published refuses the whole hand-off with the error of `publish()`.")
async def test_a_key_function_that_fails_refuses_all(shell: Shell) -> None:
    """Its own error comes out, and nothing was done."""

    def broken(message: Any) -> str:
        raise LookupError("mine")

    queue = shell.queue()
    results = shell.queue("results", deduplication=True, get_deduplication_key=shell.callback(broken))
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(LookupError, match="mine"):
            await complete(batch[0], (results, "r"))
        assert (await Awaited(queue).stats()).processing == 1
    assert await waiting(results) == []


@pytest.mark.promise("A drained target refuses the whole hand-off; a drained source finishes what it started.")
async def test_a_drained_target_refuses_all(shell: Shell) -> None:
    """As it refuses a publish; the error says which queue it was."""
    queue, good, drained = shell.queue(), shell.queue("good"), shell.queue("drained")
    await drained.drain()
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.QueueDrainedError) as caught:
            await complete(batch[0], (good, "a"), (drained, "b"))
        assert caught.value.queue == "drained"
        assert await waiting(good) == []
        await complete(batch[0], (good, "a"))
    assert await waiting(good) == [b"a"]


@pytest.mark.promise("A drained target refuses the whole hand-off; a drained source finishes what it started.")
async def test_a_drained_source_finishes_what_it_has_started(shell: Shell) -> None:
    """A drain leaves handlers their messages, and their hand-offs."""
    queue, results = shell.queue(), shell.queue("results")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        await queue.drain(0)
        await complete(batch[0], (results, "r"))
    assert await waiting(results) == [b"r"]


@pytest.mark.promise(
    "Targets must be in the same database of the same server, and share a hash tag on a cluster; others are refused."
)
async def test_a_target_elsewhere_is_refused(shell: Shell, dead_port: int) -> None:
    """Another server, and another database of the same: one script is one place."""
    queue = shell.queue()
    await queue.publish("m")
    elsewhere = [
        shell.queue("far", client=shell.dead_client(dead_port)),
        shell.queue("deep", client=shell.new_client(db=1)),
    ]
    async with queue.process_messages(1) as batch:
        for target in elsewhere:
            with pytest.raises(shell.module.ConfigurationError, match="another server"):
                await complete(batch[0], (target, "r"))
        nearby = shell.queue("near", client=shell.new_client())
        await complete(batch[0], (nearby, "r"))
    assert await waiting(nearby) == [b"r"]


@pytest.mark.promise(
    "The library tests whether two clients reach the same server and database; it does not compare their settings."
)
@pytest.mark.parametrize("spelling", ["from_url", "host and port", "localhost", "unix socket", "subclass"])
async def test_clients_of_one_server_are_one_place_however_they_are_made(
    shell: Shell, start_server: Any, tmp_path: Path, spelling: str
) -> None:
    """What counts is where their keys are: the database decides, too."""
    socket, server = str(tmp_path / "s"), shell.server
    if spelling == "unix socket":
        server = start_server(config={"unixsocket": socket})
    module: Any = redis if shell.name == "sync" else redis.asyncio
    queue = shell.queue(client=shell.closing(module.Redis(host="127.0.0.1", port=server.port)))

    def client(db: int) -> Any:
        kind = module.Redis
        if spelling == "subclass":
            kind = SubclassedRedis if shell.name == "sync" else SubclassedAsyncRedis
        made = {
            "from_url": lambda: kind.from_url(f"redis://127.0.0.1:{server.port}/{db}?protocol=3"),
            "localhost": lambda: kind(host="localhost", port=server.port, db=db),
            "unix socket": lambda: kind(unix_socket_path=socket, db=db),
        }.get(spelling, lambda: kind(host="127.0.0.1", port=server.port, db=db))
        return shell.closing(made())

    near, deep = shell.queue("near", client=client(0)), shell.queue("deep", client=client(1))
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.ConfigurationError, match="in another database"):
            await complete(batch[0], (near, "no"), (deep, "no"))
        await complete(batch[0], (near, "r"))
    assert (await waiting(near), await waiting(deep)) == ([b"r"], [])


@pytest.mark.promise(
    "The library tests whether two clients reach the same server and database; it does not compare their settings."
)
async def test_whether_two_clients_share_a_server_is_tested_once(shell: Shell) -> None:
    """Two more commands for the first hand-off between them, and a key that goes by itself."""
    queue, results = shell.queue(), shell.queue("results", client=shell.new_client())
    await queue.publish_many(["a", "b", "c"])
    await results.publish("warm-up")
    with Sent(shell.server) as sent:
        for _ in range(3):
            await hand_off(queue, (results, "r"))
    assert [word for word in sent.commands if word == "SET"] == ["SET"] * 2
    assert all(shell.redis.ttl(key) > 0 for key in shell.redis.keys("results::reply::*"))


@pytest.mark.promise("A queue with a custom gateway cannot be a target.")
async def test_custom_gateways_take_no_part(shell: Shell) -> None:
    """Neither as a target, nor one that is ours but publishes in its own way; the message is still in hand."""

    mine = silent_gateway(shell)
    auditing = type("Auditing", (shell.module.RedisGateway,), {"add_message": type(mine).add_message})
    queue = shell.queue()
    await queue.publish("m")
    for gateway, name in ((mine, "Mine"), (auditing(redis_client=shell.client), "Auditing")):
        target = shell.queue("custom", gateway=gateway)
        async with queue.process_messages(1) as batch:
            before = everything(shell)
            with pytest.raises(shell.module.GatewayContractError, match=name):
                await complete(batch[0], (target, "r"))
            assert everything(shell) == before
        await queue.publish("m")


@pytest.mark.promise("A sync queue refuses an async target and the reverse, before anything is done.")
async def test_a_sync_queue_refuses_an_async_target_and_the_reverse(shell: Shell) -> None:
    """With an error that names it, before anything is done or told, also beside a good one; the message is in hand."""
    heard: list[str] = []

    def listen(event: Any) -> None:
        heard.append(event.operation)

    async def listen_awaited(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append(event.operation)

    client = shell.server.client() if shell.name == "asyncio" else shell.server.async_client()
    other = shell.other_module.RedisMessageQueue(
        "other", client=client, on_event=listen if shell.name == "asyncio" else listen_awaited
    )
    queue, good = shell.queue(), shell.queue("good")
    await queue.publish("m")
    async with queue.process_messages(1) as batch:
        before = everything(shell)
        for target in (other, other.tenant("t")):
            with pytest.raises(
                shell.module.ConfigurationError, match="'other' are not both sync or both async"
            ) as caught:
                await Awaited(batch[0]).complete(publish=[(good.queue, "r"), (target, "r")])
            assert (caught.value.queue, caught.value.operation) == ("other", "complete")
            assert isinstance(caught.value, TypeError)
        assert everything(shell) == before
        assert heard == []
        await complete(batch[0], (good, "r"))
    assert await waiting(good) == [b"r"]
    await (client.aclose() if shell.name == "sync" else Awaited(client).close())


@pytest.mark.promise(
    "A hand-off waits for no replica or disk confirmation, even if its targets require one of producers."
)
@pytest.mark.parametrize(
    ("promise", "refusal"),
    [({"confirm_replicas": 1}, "PublishNotConfirmedError"), ({"confirm_fsync": True}, "ConfigurationError")],
)
async def test_a_hand_off_waits_for_no_confirmation(shell: Shell, promise: dict[str, Any], refusal: str) -> None:
    """What a target wants of a publish it does not have here: the results are there, as safe as the message was."""
    queue = shell.queue()
    careful = shell.queue("careful", confirm_timeout_seconds=0.05, **promise)
    await queue.publish_many(["warm-up", "m"])
    await hand_off(queue, (shell.queue("other"), "r"))
    with Sent(shell.server) as sent:
        await hand_off(queue, (careful, "r"))
    assert sent.commands == ["EVALSHA"] * 2  # the claim, and the hand-off
    assert await waiting(careful) == [b"r"]
    assert (await Awaited(queue).stats()).processing == 0
    with pytest.raises(getattr(shell.module, refusal)):
        await careful.publish("nobody here can confirm it")


@pytest.mark.promise("Messages of a custom gateway cannot be handed off, unless it only overrides publishing.")
async def test_the_messages_of_a_custom_gateway_cannot_be_handed_off(shell: Shell) -> None:
    """It delivers payloads only, so there is no message object to complete; its handler is served as ever."""
    gateways = {
        "claims": ("wait_for_message_and_move",),
        "settles": ("remove_message", "move_message"),
        "renews": ("renew_message_lease",),
    }
    results = shell.queue("results")
    for name, operations in gateways.items():
        kind = type(name, (shell.module.RedisGateway,), {one: overriding(shell, one) for one in operations})
        gateway = kind(redis_client=shell.client, message_visibility_timeout_seconds=60)
        queue = shell.queue(name, gateway=gateway)
        await queue.publish("m")
        async with queue.process_message() as message:
            assert message == b"m"
            with pytest.raises(shell.module.GatewayContractError, match="payloads only"):
                await complete(queue.current_message(), (results, "r"))
        assert (shell.pending(queue), shell.processing(queue)) == (0, 0)
    assert await waiting(results) == []


@pytest.mark.promise("Messages of a custom gateway cannot be handed off, unless it only overrides publishing.")
async def test_a_gateway_that_only_publishes_in_its_own_way_may_be_the_source(shell: Shell) -> None:
    """Its messages are claimed and settled as any others; what it does with a publish is no matter of their leaving."""
    kind = type("Auditing", (shell.module.RedisGateway,), {"add_message": overriding(shell, "add_message")})
    gateway = kind(redis_client=shell.client, message_visibility_timeout_seconds=60)
    queue, results = shell.queue(gateway=gateway, enable_completed_queue=True), shell.queue("results")
    await queue.publish("m")
    await hand_off(queue, (results, "r"))
    assert await waiting(results) == [b"r"]
    assert shell.listed(queue.key.completed) == [b"m"]
    assert shell.processing(queue) == 0


def overriding(shell: Shell, operation: str) -> Any:
    """An operation of a gateway of one's own, which does what the built-in one does."""
    usual = getattr(shell.module.RedisGateway, operation)
    if shell.name == "sync":
        return lambda self, *arguments, **options: usual(self, *arguments, **options)

    async def awaited(self: Any, *arguments: Any, **options: Any) -> Any:
        return await usual(self, *arguments, **options)

    return awaited


@pytest.mark.promise(
    "A key of the wrong type, or a server out of memory, refuses the whole hand-off, and the message stays leased."
)
async def test_a_target_key_of_a_wrong_type_refuses_all(shell: Shell) -> None:
    """Fail closed: nothing is changed at any target, and the message is still in hand."""
    queue, good, spoiled = shell.queue(enable_completed_queue=True), shell.queue("good"), shell.queue("spoiled")
    await queue.publish("m")
    for key, details in (
        (spoiled.key.pending, {}),
        (spoiled.key.wakeup, {}),
        (spoiled.key.tenant_pending("t"), {"tenant": "t"}),
        (spoiled.key.tenant_ring, {"tenant": "t"}),
        (spoiled.key.delayed_messages, {"delay_seconds": 5}),
        (queue.key.completed, {}),
    ):
        async with queue.process_messages(1) as batch:
            shell.redis.set(key, "somebody else's")
            before = everything(shell)
            with pytest.raises(shell.module.LuaScriptError, match="WRONGTYPE"):
                await complete(batch[0], (good, "a"), (spoiled, "b", details))
            assert everything(shell) == before, key
            shell.redis.delete(key)
        await queue.publish("m")


@pytest.mark.promise(
    "A key of the wrong type, or a server out of memory, refuses the whole hand-off, and the message stays leased."
)
async def test_on_a_full_server_nothing_is_handed_off_and_everything_can_be_completed(
    shell: Shell, start_server: Any
) -> None:
    """A refused hand-off has changed nothing; without results it is an ack, which a full server takes."""
    server = start_server()
    with server.client() as onlooker:
        client = shell.closing(server.client() if shell.name == "sync" else server.async_client())
        queue = shell.queue(client=client, enable_completed_queue=True)
        results = shell.queue("results", client=client)
        await queue.publish_many(["a", "b"])
        await hand_off(queue, (results, "warm-up"))
        async with queue.process_messages(1) as batch:
            onlooker.config_set("maxmemory", 1)
            with pytest.raises(Exception, match="memory"):
                await complete(batch[0], (results, "r"))
            assert (onlooker.llen(results.key.pending), onlooker.hlen(queue.key.processing)) == (1, 1)
            await complete(batch[0])
            assert onlooker.hlen(queue.key.processing) == 0
            onlooker.config_set("maxmemory", 0)
        assert onlooker.lrange(queue.key.completed, 0, -1) == [b"b", b"a"]


@pytest.mark.promise(
    "Targets must be in the same database of the same server, and share a hash tag on a cluster; others are refused."
)
@pytest.mark.promise("Every feature works on a cluster.")
async def test_on_a_cluster_queues_share_a_hash_tag(shell: Shell, start_server: Any) -> None:
    """Those that do hand off as ever; one in another slot is refused with a word about tags."""
    server = start_server(config={"cluster-enabled": "yes"})
    with server.client() as node:
        node.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        assert await until(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO"))
    kind = redis.RedisCluster if shell.name == "sync" else redis.asyncio.RedisCluster
    client = shell.closing(kind(host=server.host, port=server.port))
    queue = shell.queue("{orders}in", client=client, enable_completed_queue=True)
    near, far = shell.queue("{orders}out", client=client, deduplication=True), shell.queue("far", client=client)
    await queue.publish("m", tenant="t")
    async with queue.process_messages(1) as batch:
        with pytest.raises(shell.module.ConfigurationError, match="hash tag"):
            await complete(batch[0], (near, "r"), (far, "r"))
        await complete(batch[0], (near, "r"), (near, "s", {"tenant": "u"}), (queue, "t", {"delay_seconds": 100}))
    assert sorted(await waiting(near)) == [b"r", b"s"]
    assert [one.payload for one in await Awaited(queue).records("completed")] == [b"m"]
    assert (await Awaited(far).stats()).pending == 0
