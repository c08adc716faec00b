"""The names of a queue's keys, which operators rely on."""

import pytest

from tests.contract.shells import Shell, claim_and_die, take


async def test_an_operator_finds_the_lists_under_these_names(shell: Shell) -> None:
    """Name, separator, word: the three terminal lists and what waits and is worked on."""
    key = shell.queue("orders").key
    assert key.pending == "orders::pending"
    assert key.processing == "orders::processing"
    assert key.completed == "orders::completed"
    assert key.failed == "orders::failed"
    assert key.dead_letter == "orders::dlq"
    assert key.deduplication("k1") == "orders::deduplication::k1"


async def test_the_separator_is_the_users_choice(shell: Shell) -> None:
    """Every key that is written has it, and none the usual one."""
    queue = shell.queue("orders", key_separator="/", deduplication=True, enable_completed_queue=True)
    await queue.publish("a")
    await take(queue)
    assert queue.key.pending == "orders/pending"
    assert all(key.startswith(b"orders/") and b"::" not in key for key in shell.redis.keys("*"))


async def test_a_name_beyond_ascii_names_its_keys_in_utf8(shell: Shell) -> None:
    """Redis keys are bytes; ours are UTF-8."""
    queue = shell.queue("żółć 🐘")
    await queue.publish("a")
    assert shell.redis.exists("żółć 🐘::pending".encode())
    assert await take(queue) == b"a"


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


async def test_a_name_with_a_tag_of_its_own_keeps_it(shell: Shell) -> None:
    """Tagging is not done twice."""
    assert shell.queue("{eu}:orders", hash_tag=True).key.pending == "{eu}:orders::pending"


@pytest.mark.parametrize("name", ["a{b", "}{", "{}", "a}b"])
async def test_a_name_whose_braces_make_no_tag_cannot_be_tagged(shell: Shell, name: str) -> None:
    """Braces that say nothing would put each key into a slot of its own."""
    with pytest.raises(shell.module.ConfigurationError, match=r"^name "):
        shell.queue(name, hash_tag=True)


async def test_a_gateway_may_name_the_dead_letters(shell: Shell) -> None:
    """The key of that name is the one that is used and shown."""
    gateway = shell.gateway(
        message_wait_interval_seconds=0,
        message_visibility_timeout_seconds=300,
        max_delivery_count=1,
        dead_letter_queue="graveyard",
    )
    queue = shell.queue(gateway=gateway)
    assert queue.key.dead_letter == "graveyard"
    await queue.publish("a")
    await claim_and_die(queue)
    shell.lapse(queue)
    assert await take(queue) is None
    assert shell.listed("graveyard") == [b"a"]
