"""The exceptions of the library: their types and attributes."""

import copy
import pickle

import pytest
import redis.exceptions

import redis_message_queue
import redis_message_queue.asyncio
from redis_message_queue import RedisMessageQueueError
from tests.contract.shells import Shell, take
from tests.tables import row

pytestmark = pytest.mark.topic("Errors")

# Each error and what else it is, so that code which catches the older class goes on working.
TREE = {
    "ConfigurationError": (ValueError,),
    "ConfigurationTypeError": (redis_message_queue.ConfigurationError, ValueError, TypeError),
    "GatewayContractError": (TypeError,),
    "NotPermittedError": (redis_message_queue.LuaScriptError, redis.exceptions.NoPermissionError),
    "LuaScriptError": (redis.exceptions.ResponseError, redis.exceptions.RedisError),
    "RetryBudgetExhaustedError": (redis.exceptions.RedisError,),
    "StateVersionError": (RuntimeError,),
    "PayloadTooLargeError": (ValueError,),
    "PayloadTooDeepError": (ValueError,),
    "PayloadTypeError": (TypeError,),
    "PayloadValueError": (ValueError,),
    "QueueBackpressureError": (),
    "PublishNotConfirmedError": (),
    "QueueDrainedError": (),
    "CleanupFailedError": (),
    "LeaseLostError": (),
    "CorruptMessageError": (ValueError,),
    "EmbeddedServerError": (RuntimeError,),
    "MissingExtraError": (ImportError,),
    "FaultInjectionError": (AssertionError,),
    "JavaError": (RuntimeError,),
    "ConsumerGroupBusyError": (),
    "ConsumerGroupLostError": (),
    "PartitionCountError": (RuntimeError,),
    "DataLossError": (),
    "JournalError": (),
    "JobError": (),
    "ArchiveError": (redis_message_queue.JobError,),
    "ArchiveConflictError": (redis_message_queue.ArchiveError,),
    "SelectionError": (redis_message_queue.JobError, ValueError),
}


@pytest.mark.promise("Every error of the library is a `RedisMessageQueueError`.")
@pytest.mark.promise(
    "`ConfigurationError` is a `ValueError`, `GatewayContractError` a `TypeError`, `LuaScriptError` a redis-py "
    "`ResponseError`."
)
@pytest.mark.promise("`PayloadTooLargeError` and `PayloadTooDeepError` are `ValueError`s.")
def test_every_error_has_the_common_base_and_its_builtin_base(subtests: pytest.Subtests) -> None:
    """Catching RedisMessageQueueError catches them all."""
    for name in TREE:
        with row(subtests, name=name):
            kind = getattr(redis_message_queue, name)
            for base in (RedisMessageQueueError, Exception, *TREE[name]):
                assert issubclass(kind, base)


@pytest.mark.promise("Every error of the library is a `RedisMessageQueueError`.")
def test_the_tree_is_complete() -> None:
    """Every public error is in the table above, and the two modules share them."""
    public = {name for name in redis_message_queue.__all__ if name.endswith("Error")}
    assert public == {"RedisMessageQueueError", *TREE}
    for name in public:
        assert getattr(redis_message_queue, name) is getattr(redis_message_queue.asyncio, name)


@pytest.mark.promise("Errors name the queue, the message and the operation where they are known.")
def test_every_error_can_say_where_it_happened(subtests: pytest.Subtests) -> None:
    """queue, message_id and operation, each None where it is not known."""
    for name in TREE:
        with row(subtests, name=name):
            kind = getattr(redis_message_queue, name)
            bare = kind("text")
            assert (str(bare), bare.queue, bare.message_id, bare.operation) == ("text", None, None, None)
            full = kind("text", queue="q", message_id="m", operation="publish")
            assert (str(full), full.queue, full.message_id, full.operation) == ("text", "q", "m", "publish")


def test_an_error_survives_a_process_pool(subtests: pytest.Subtests) -> None:
    """Pickled or copied, it is the same error with the same attributes."""
    for name in TREE:
        with row(subtests, name=name):
            error = getattr(redis_message_queue, name)("text", queue="q", message_id="m", operation="ack")
            for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                assert type(twin) is type(error)
                assert (str(twin), twin.queue, twin.message_id, twin.operation) == ("text", "q", "m", "ack")


def test_every_error_says_in_its_docstring_what_to_do(subtests: pytest.Subtests) -> None:
    """One sentence of its own."""
    for name in TREE:
        with row(subtests, name=name):
            doc = getattr(redis_message_queue, name).__doc__
            assert doc and doc != RedisMessageQueueError.__doc__


# Where they come from


@pytest.mark.promise("Errors name the queue, the message and the operation where they are known.")
async def test_every_refusal_of_a_queue_knows_its_queue_and_operation(shell: Shell) -> None:
    """By the name that the user gave, also where the keys carry a hash tag."""
    options = {"hash_tag": True, "wait": 0}
    full = shell.queue("orders", max_pending_length=1, **options)
    await full.publish("a")
    wrong = shell.queue("wrong", **options)
    shell.redis.set(wrong.key.pending, "not a list")
    keyless = shell.queue("orders", deduplication=True, get_deduplication_key=lambda message: None, **options)
    strict = shell.queue("orders", strict_payload_types=True, max_payload_bytes=20, max_payload_depth=2, **options)
    for queue, message, kind, name in (
        (full, "b", "QueueBackpressureError", "orders"),
        (wrong, "b", "LuaScriptError", "wrong"),
        (keyless, "b", "ConfigurationError", "orders"),
        (strict, "x" * 21, "PayloadTooLargeError", "orders"),
        (strict, {"a": [[]]}, "PayloadTooDeepError", "orders"),
        (strict, {"a": (1,)}, "PayloadTypeError", "orders"),
        (strict, "\ud800", "PayloadValueError", "orders"),
        (strict, b"bytes", "PayloadTypeError", "orders"),
    ):
        with pytest.raises(getattr(shell.module, kind)) as refusal:
            await queue.publish(message)
        assert (refusal.value.queue, refusal.value.operation) == (name, "publish"), kind


@pytest.mark.promise("Errors name the queue, the message and the operation where they are known.")
async def test_a_refused_claim_and_a_refused_ack_know_their_queue_and_operation(shell: Shell) -> None:
    """And the ack its message."""
    queue = shell.queue("orders", hash_tag=True, wait=0)
    shell.redis.set(queue.key.pending, "not a list")
    with pytest.raises(shell.module.LuaScriptError) as refusal:
        await take(queue)
    assert (refusal.value.queue, refusal.value.operation) == ("orders", "claim")
    shell.redis.delete(queue.key.pending)
    await queue.publish("a")
    with pytest.raises(shell.module.CleanupFailedError) as failure:
        async with queue.process_message():
            message_id = queue.current_message().id
            shell.redis.delete(queue.key.processing)
            shell.redis.set(queue.key.processing, "not a hash")
    assert (failure.value.queue, failure.value.message_id, failure.value.operation) == ("orders", message_id, "ack")
