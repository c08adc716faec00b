"""Claims of a streaming query on a cluster: all of their keys share the queue's slot."""

from redis_message_queue import RedisMessageQueue
from redis_message_queue.spark.groups import Groups
from tests.topologies.cluster import Cluster


def test_a_query_claims_reads_acknowledges_and_releases_on_a_cluster(cluster: Cluster):
    client = cluster.client()
    queue = RedisMessageQueue("orders", client=client, visibility_timeout_seconds=300)
    queue.publish_many([f"message {place}" for place in range(2_500)])
    queue.publish("of a tenant", tenant="acme")
    groups = Groups(client, "orders", "reports")
    groups.take_over()
    groups.adopt()
    assert groups.gather(2_000) == 2_000
    assert groups.seal() == 1
    assert len(groups.read(1, 0, 3_000)) == 2_000
    groups.acknowledge(1)
    assert groups.gather(300) == 300
    assert queue.stats().processing == 300
    assert groups.release() == 300
    assert (queue.stats().processing, queue.stats().pending, groups.depth()) == (0, 501, 501)
    client.close()
