"""Two Sentinel deployments use the same service name: a hand-off never confuses them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.concurrency import LIMIT_SECONDS
from tests.contract.shells import Awaited, Shell
from tests.topologies.sentinels import SentinelSet

pytestmark = pytest.mark.topic("Hand-off")


LONG_BUDGET = {"retry_budget_seconds": LIMIT_SECONDS, "retry_max_delay_seconds": 0.1}


@pytest.fixture
def topology(sentinels: SentinelSet) -> SentinelSet:
    return sentinels


@pytest.fixture
def others(server_setting: str, tmp_path: Path) -> Iterator[SentinelSet]:
    """The other deployment."""
    directory = tmp_path / "others"
    directory.mkdir()
    with SentinelSet(server_setting, directory) as started:
        yield started


@pytest.mark.promise(
    "The library tests whether two clients reach the same server and database; it does not compare their settings."
)
async def test_a_hand_off_goes_to_the_deployment_of_its_client_or_nowhere(
    shell: Shell, sentinels: SentinelSet, others: SentinelSet
) -> None:
    """Refused for the other deployment; fine for another client of the same one, even after a failover."""
    queue = shell.queue("source", **LONG_BUDGET)
    near = shell.queue("results", client=shell.new_client(), **LONG_BUDGET)
    connect = others.client if shell.name == "sync" else others.async_client
    far = shell.queue("results", client=shell.closing(connect()), **LONG_BUDGET)
    await queue.publish_many(["a", "b", "c"])

    async def hand_off(target: Any, result: str) -> None:
        async with queue.process_messages(1) as batch:
            await Awaited(batch[0]).complete(publish=[(target.queue, result)])

    async def results(target: Any) -> list[bytes]:
        return [one.payload for one in await Awaited(target).peek(10)]

    await far.publish("untouched")
    for _ in range(2):
        with pytest.raises(shell.module.ConfigurationError, match="'results' is on another server"):
            await hand_off(far, "lost")
        assert (await results(far), await results(near)) == ([b"untouched"], [])
        assert (await Awaited(queue).stats()).pending == 3
    await hand_off(near, "of a")
    sentinels.replicate()
    sentinels.switch_over()
    await hand_off(near, "of b")
    with pytest.raises(shell.module.ConfigurationError, match="'results' is on another server"):
        await hand_off(far, "lost")
    assert (await results(far), await results(near)) == ([b"untouched"], [b"of a", b"of b"])
    assert (await Awaited(queue).stats()).pending == 1
