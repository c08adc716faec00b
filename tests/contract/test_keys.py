"""The names of a queue's keys, which operators rely on."""

from itertools import product
from typing import Any

import pytest

from redis_message_queue.stored.keys import KEY_MAP
from tests.contract.shells import Awaited, Shell, claim_and_die, silent_gateway, take
from tests.tables import row

pytestmark = pytest.mark.topic("Names and keys")


@pytest.mark.promise(
    "`queue.key` names `pending`, `processing`, `completed`, `failed`, `dead_letter` and `deduplication(key)` for "
    "operators."
)
@pytest.mark.promise("`queue.key.dead_letter` is the list in use: `<name>::dlq`, or the one that the gateway names.")
async def test_an_operator_finds_the_lists_under_these_names(shell: Shell) -> None:
    """Name, separator, word: the three terminal lists and what waits and is worked on."""
    key = shell.queue("orders").key
    assert key.pending == "orders::pending"
    assert key.processing == "orders::processing"
    assert key.completed == "orders::completed"
    assert key.failed == "orders::failed"
    assert key.dead_letter == "orders::dlq"
    assert key.deduplication("k1") == "orders::deduplication::k1"


@pytest.mark.promise("You can choose the separator between the parts of a key.")
async def test_the_separator_is_the_users_choice(shell: Shell) -> None:
    """Every key that is written has it, and none the usual one."""
    queue = shell.queue("orders", key_separator="/", deduplication=True, enable_completed_queue=True)
    await queue.publish("a")
    await take(queue)
    assert queue.key.pending == "orders/pending"
    assert all(key.startswith(b"orders/") and b"::" not in key for key in shell.redis.keys("*"))


@pytest.mark.promise("Names that are not ASCII are stored as UTF-8.")
async def test_a_name_beyond_ascii_names_its_keys_in_utf8(shell: Shell) -> None:
    """Redis keys are bytes; ours are UTF-8."""
    queue = shell.queue("żółć 🐘")
    await queue.publish("a")
    assert shell.redis.exists("żółć 🐘::pending".encode())
    assert await take(queue) == b"a"


@pytest.mark.promise("`hash_tag=True` puts all keys of a queue into one slot on any client.")
async def test_hash_tag_puts_all_keys_into_one_slot(shell: Shell) -> None:
    """Asked for, it tags the name on any server; every key in Redis carries the same tag."""
    queue = shell.queue("orders", hash_tag=True, deduplication=True, enable_failed_queue=True, max_delivery_count=1)
    assert queue.key.dead_letter == "{orders}::dlq"
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    await queue.publish("b")
    await take(queue)
    assert shell.listed(queue.key.dead_letter) == [b"a"]
    assert all(key.startswith(b"{orders}::") for key in shell.redis.keys("*"))


@pytest.mark.promise("A name with its own hash tag keeps it; braces that form no tag are refused.")
async def test_a_name_with_a_tag_of_its_own_keeps_it(shell: Shell) -> None:
    """Tagging is not done twice."""
    assert shell.queue("{eu}:orders", hash_tag=True).key.pending == "{eu}:orders::pending"


@pytest.mark.promise("A name with its own hash tag keeps it; braces that form no tag are refused.")
@pytest.mark.parametrize("name", ["a{b", "}{", "{}", "a}b"])
async def test_a_name_whose_braces_make_no_tag_cannot_be_tagged(shell: Shell, name: str) -> None:
    """Braces that say nothing would put each key into a slot of its own."""
    with pytest.raises(shell.module.ConfigurationError, match=r"^name "):
        shell.queue(name, hash_tag=True)


HIDING_NAMES = [
    ("jobs::tenant_pending", "::", "tenant_pending"),
    ("jobs::expired::x", "::", "expired"),
    ("a::pending", "::", "pending"),
    ("{jobs}::tenant_pending", "::", "tenant_pending"),
    ("jobs::eu::group::7", "::", "group"),
    ("jobs:::tenant_pending", "::", "tenant_pending"),
    ("jobs::tenant_pending:", "::", "tenant_pending"),
    ("jobs/deduplication/x", "/", "deduplication"),
    ("jobs.tenant_pending", ".", "tenant_pending"),
    # The other queue may have the usual separator.
    ("jobs::tenant_pending::acme", "-", "tenant_pending"),
    ("jobs::reply::", "x", "reply"),
    ("jobs", "::tenant_pending::", "tenant_pending"),
]


@pytest.mark.promise(
    "A name that contains the separator and a reserved word is refused, because its keys could belong to another queue."
)
async def test_a_name_whose_keys_could_be_those_of_another_queue_is_refused(
    shell: Shell, subtests: pytest.Subtests
) -> None:
    """The error names the reserved word, whatever the queue is made with."""
    for (name, separator, word), way in product(HIDING_NAMES, ["client", "tagged", "gateway", "custom gateway"]):
        with row(subtests, name=name, separator=separator, word=word, way=way):
            options: dict[str, Any] = {"key_separator": separator}
            if way == "gateway":
                options["gateway"] = shell.gateway()
            elif way == "custom gateway":
                options["gateway"] = silent_gateway(shell)
            elif way == "tagged":
                options["hash_tag"] = True
            with pytest.raises(shell.module.ConfigurationError, match=f"^name .*reserved word '{word}'"):
                shell.queue(name, **options)


@pytest.mark.promise(
    "A name that contains the separator and a reserved word is refused, because its keys could belong to another queue."
)
async def test_every_word_of_the_key_map_is_reserved(shell: Shell, subtests: pytest.Subtests) -> None:
    """Also those that come to it one day."""
    for kind in KEY_MAP:
        with row(subtests, kind=kind):
            word = kind.word.split("::")[0]
            with pytest.raises(shell.module.ConfigurationError, match=f"reserved word '{word}'"):
                shell.queue(f"jobs::{word}")


@pytest.mark.promise(
    "A name that contains the separator and a reserved word is refused, because its keys could belong to another queue."
)
async def test_a_name_that_only_looks_like_a_key_is_taken(shell: Shell, subtests: pytest.Subtests) -> None:
    """A reserved word alone, as a part of a longer one, or after something else than the separator."""
    for name in [
        "tenant_pending",
        "pending",
        "jobs:line",
        "jobs.tenant_pending",
        "jobs::lines",
        "jobs::pending-eu",
        "jobs::eu",
        "::",
        "a::",
        "q::x::y",
    ]:
        with row(subtests, name=name):
            shell.redis.flushall()
            queue, other = shell.queue(name, wait=0), shell.queue("jobs", wait=0)
            await queue.publish("a", tenant="pending")
            assert await take(other) is None
            assert await take(queue) == b"a"


@pytest.mark.promise(
    "A name that contains the separator and a reserved word is refused, because its keys could belong to another queue."
)
async def test_the_operations_of_a_gateway_refuse_such_a_name_too(shell: Shell) -> None:
    """They are given whole keys, and find the queue in them."""
    gateway = Awaited(shell.gateway(message_wait_interval_seconds=0))
    with pytest.raises(shell.module.ConfigurationError, match="reserved word 'tenant_pending'"):
        await gateway.add_message("jobs::tenant_pending::pending", "a")
    with pytest.raises(shell.module.ConfigurationError, match="reserved word 'tenant_pending'"):
        await gateway.wait_for_message_and_move("jobs::tenant_pending::pending", "jobs::tenant_pending::processing")
    assert shell.is_empty


OWN_KEYS = [
    "pending",
    "processing",
    "completed",
    "failed",
    "leases",
    "wakeup",
    "journal",
    "tenant_pending::acme",
    "records::dlq",
]


@pytest.mark.promise("A dead-letter name that is another key of the same queue is refused.")
async def test_a_gateway_may_not_name_another_key_of_the_queue(shell: Shell, subtests: pytest.Subtests) -> None:
    """Dead letters in the line would be delivered, and elsewhere stop the queue; the list's own usual name is fine."""
    for word, tagged in product(OWN_KEYS, [False, True]):
        with row(subtests, word=word, tagged=tagged):
            with pytest.raises(shell.module.ConfigurationError, match=f"^dead_letter_queue .*{word.split('::')[0]}"):
                shell.queue(gateway=shell.gateway(dead_letter_queue=f"q::{word}", hash_tag=tagged))
            custom = silent_gateway(shell)
            type(custom).dead_letter_queue = f"q::{word}"
            with pytest.raises(shell.module.ConfigurationError, match=r"^dead_letter_queue "):
                shell.queue(gateway=custom)
            for fine in ("q::dlq", "q::dead_letter", "q::pendings"):
                queue = shell.queue(gateway=shell.gateway(dead_letter_queue=fine, hash_tag=tagged))
                assert queue.key.dead_letter == (fine.replace("q::", "{q}::") if tagged else fine)


@pytest.mark.promise("`queue.key.dead_letter` is the list in use: `<name>::dlq`, or the one that the gateway names.")
@pytest.mark.promise("A gateway can name the dead-letter list.")
async def test_a_gateway_may_name_the_dead_letters(shell: Shell) -> None:
    """The key of that name is the one that is used and shown."""
    gateway = shell.gateway(
        message_wait_interval_seconds=0,
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue="poison",
    )
    queue = shell.queue(gateway=gateway)
    assert queue.key.dead_letter == "poison"
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed("poison") == [b"a"]
