"""The checker finds every violation that is planted, and accuses nobody of what is allowed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from chaos.checker import LEDGERS, RULES_FILE, Rules, check_directory
from chaos.evidence import QueueEvidence, StoredKey, save
from chaos.scenario import TICK_KEY, QueuePlace
from redis_message_queue.stored.partitioning import partition_of
from tests.chaos.scenarios import LEASE, WINDOW, Scenario

STORED_ONCE = "every confirmed publish is stored once"
ONE_PLACE = "every message is in exactly one place"
FENCED = "no settlement by a lost lease"
REPLICATED = QueuePlace("clicks", "replicated")
TICKING = QueuePlace("orders", "durable", tick_seconds=2.0)
LIMITED = QueuePlace("orders", "durable", most_in_flight=1)
ORDERED = QueuePlace("orders", "durable", ordered=True)
SPREAD = QueuePlace("orders", "durable", partitions=2)
CONFIRMING = QueuePlace("payments", "replicated", confirms=True)


def kept() -> Scenario:
    """A publish, a duplicate, a redelivery, a retry and a message that still waits."""
    scenario = Scenario()
    scenario.publish("a")
    scenario.publish("b", d="key")
    scenario.publish("c", d="key", outcome="suppressed")
    scenario.publish("d")
    scenario.publish("e")
    for message in ("a", "b"):
        scenario.handle(message)
    scenario.claim("d", who="dead consumer")
    scenario.settle("d", scenario.claim("d", event="reclaimed"))
    scenario.queue.waiting.append("id-e")
    return scenario


def test_a_campaign_without_violations_passes_and_is_counted() -> None:
    verdict = kept().verdict()
    assert verdict.violations == []
    assert verdict.counts["publishes confirmed"] == 4
    assert verdict.counts["publishes suppressed"] == 1
    assert verdict.counts["messages acked"] == 3
    assert verdict.counts["messages left in Redis"] == 1
    assert verdict.counts["deliveries"] == 4


def test_a_confirmed_publish_that_is_not_stored_is_found() -> None:
    scenario = kept()
    scenario.intend("lost")
    scenario.confirm()
    assert scenario.broken() == {STORED_ONCE}


def test_a_publish_that_is_stored_twice_is_found() -> None:
    scenario = kept()
    scenario.publish("twice")
    scenario.record("published", "twice-again", key="twice")
    scenario.queue.waiting += ["id-twice", "id-twice-again"]
    assert scenario.broken() == {STORED_ONCE}


def test_a_refused_publish_that_is_stored_is_found() -> None:
    scenario = kept()
    scenario.publish("refused", outcome="refused")
    scenario.queue.waiting.append("id-refused")
    assert scenario.broken() == {STORED_ONCE}


def test_an_unknown_outcome_may_be_stored_or_not() -> None:
    scenario = kept()
    scenario.publish("stored", outcome="unknown")
    scenario.publish("killed", outcome="none")
    scenario.queue.waiting += ["id-stored", "id-killed"]
    scenario.intend("not stored")
    scenario.confirm("unknown")
    assert scenario.broken() == set()


def test_a_message_that_nobody_published_is_found() -> None:
    scenario = kept()
    scenario.record("published", "invented", key="invented")
    scenario.queue.waiting.append("id-invented")
    assert scenario.broken() == {STORED_ONCE}


def test_a_suppressed_publish_without_an_original_is_found() -> None:
    scenario = kept()
    scenario.intend("suppressed", d="other")
    scenario.record("duplicate", "suppressed", of="id-that-never-was")
    scenario.confirm("suppressed")
    assert scenario.broken() == {STORED_ONCE}


def test_a_message_that_is_nowhere_is_found() -> None:
    scenario = kept()
    scenario.queue.waiting.clear()
    assert scenario.broken() == {ONE_PLACE}


def test_a_message_that_is_in_two_places_is_found() -> None:
    scenario = kept()
    scenario.queue.processing.append("id-e")
    assert scenario.broken() == {ONE_PLACE}


def test_a_message_that_lives_after_its_end_is_found() -> None:
    scenario = kept()
    scenario.record("claimed", "a")
    assert ONE_PLACE in scenario.broken()


def test_a_gap_in_the_journal_is_found() -> None:
    scenario = kept()
    scenario.queue.journal[-1] = replace(scenario.queue.journal[-1], n=99)
    assert scenario.broken() == {"the journal has no gap"}


def test_a_list_that_misses_a_message_is_found() -> None:
    scenario = kept()
    del scenario.queue.completed["a"]
    assert scenario.broken() == {"the lists agree with the journal"}


def test_a_list_that_has_a_message_twice_is_found() -> None:
    scenario = kept()
    scenario.queue.dead_letters["a"] += 1
    assert scenario.broken() == {"the lists agree with the journal"}


def test_a_duplicate_within_its_window_is_found_and_one_after_it_is_not() -> None:
    scenario = kept()
    scenario.queue.journal[1] = replace(scenario.queue.journal[1], at=scenario.time)
    scenario.publish("early", d="key")
    scenario.queue.waiting.append("id-early")
    assert scenario.broken() == {"no duplicate within a window"}
    scenario = kept()
    scenario.time += WINDOW
    scenario.publish("late", d="key")
    scenario.queue.waiting.append("id-late")
    assert scenario.broken() == set()


def test_a_window_that_has_passed_stays_so_when_the_clock_is_stepped_back() -> None:
    scenario = kept()
    scenario.time += WINDOW
    scenario.publish("when the clock was ahead")
    scenario.time -= WINDOW
    scenario.publish("after it", d="key")
    scenario.queue.waiting += ["id-when the clock was ahead", "id-after it"]
    assert scenario.broken() == set()


def test_the_same_key_for_two_tenants_is_no_duplicate() -> None:
    scenario = kept()
    scenario.publish("of acme", tenant="acme", d="key")
    scenario.queue.waiting.append("id-of acme")
    assert scenario.broken() == set()


def test_a_settlement_by_a_lost_lease_is_found() -> None:
    """The first consumer is too slow, the second one has begun, and the first one acknowledges."""
    scenario = kept()
    scenario.publish("slow")
    late = scenario.claim("slow", who="slow consumer")
    scenario.claim("slow", who="next consumer", event="reclaimed")
    scenario.settle("slow", late, who="slow consumer")
    assert FENCED in scenario.broken()


def test_a_late_consumer_that_is_refused_is_allowed() -> None:
    scenario = kept()
    scenario.publish("slow")
    late = scenario.claim("slow", who="slow consumer")
    scenario.settle("slow", scenario.claim("slow", who="next consumer", event="reclaimed"), who="next consumer")
    scenario.say("slow consumer", "handled", **scenario.seen("slow", late))
    scenario.settled("slow", late, who="slow consumer", how="stale")
    verdict = scenario.verdict()
    assert verdict.violations == []
    assert verdict.counts["settlements refused because the lease was lost"] == 1


def test_two_consumers_that_both_acknowledged_are_found() -> None:
    scenario = kept()
    scenario.publish("both")
    first = scenario.claim("both", who="one")
    second = scenario.claim("both", who="other", event="reclaimed")
    scenario.settle("both", second, who="other")
    scenario.say("one", "handled", **scenario.seen("both", first))
    scenario.settled("both", first, who="one")
    assert FENCED in scenario.broken()


def test_an_acknowledged_message_that_nobody_handled_is_found() -> None:
    scenario = kept()
    scenario.publish("skipped")
    scenario.claim("skipped")
    scenario.record("acked", "skipped")
    scenario.queue.completed["skipped"] += 1
    assert scenario.broken() == {"only handled messages are acknowledged"}


def test_a_loop_that_goes_on_under_a_new_lease_is_allowed() -> None:
    """It gets its own message again while its handler works, and acknowledges it with the second lease."""
    scenario = kept()
    scenario.publish("long")
    lease = scenario.claim("long")
    scenario.record("reclaimed", "long")
    scenario.say("consumer", "claimed", **scenario.seen("long", "lease-long-2"))
    scenario.say("consumer", "handled", **scenario.seen("long", lease))
    scenario.record("acked", "long")
    scenario.queue.completed["long"] += 1
    scenario.settled("long", "lease-long-2")
    assert scenario.broken() == set()


def test_a_tenant_that_is_served_twice_while_another_waits_is_found() -> None:
    scenario = Scenario()
    for message, tenant in (("a1", "acme"), ("a2", "acme"), ("b1", "globex")):
        scenario.publish(message, tenant=tenant)
    for message, tenant in (("a1", "acme"), ("a2", "acme"), ("b1", "globex")):
        scenario.handle(message, tenant)
    assert scenario.broken() == {"fairness"}


def served_while_nobodys_message_waits(*messages: str) -> set[str]:
    scenario = Scenario()
    scenario.publish("waits")
    for message in messages:
        scenario.publish(message, tenant="acme")
    for message in messages:
        scenario.handle(message, "acme")
    scenario.handle("waits")
    return scenario.broken()


def test_a_message_without_a_tenant_waits_for_one_turn_of_another_at_most() -> None:
    assert served_while_nobodys_message_waits("a1") == set()
    assert served_while_nobodys_message_waits("a1", "a2") == {"fairness"}


def test_a_redelivery_is_a_turn() -> None:
    """One tenant's expired message goes before a message that waits, and a second one does not."""
    scenario = Scenario()
    for message in ("a1", "a2"):
        scenario.publish(message, tenant="acme")
        scenario.claim(message, tenant="acme")
    scenario.publish("waits")
    scenario.record("reclaimed", "a1", "acme")
    assert "fairness" not in scenario.broken()
    scenario.record("reclaimed", "a2", "acme")
    assert "fairness" in scenario.broken()


def test_a_campaign_can_be_checked_again_from_its_directory(tmp_path: Path) -> None:
    scenario = kept()
    scenario.evidence.keys.append(StoredKey("orders::completed", "list", None, 3))
    save(scenario.evidence, tmp_path)
    (tmp_path / RULES_FILE).write_text(json.dumps(asdict(Rules(WINDOW, [(1.0, 2.0)]))))
    (tmp_path / LEDGERS).mkdir()
    lines = [json.dumps(entry) for entry in scenario.ledger]
    (tmp_path / LEDGERS / "all.jsonl").write_text("\n".join([*lines, ""]))
    assert check_directory(tmp_path).counts == scenario.verdict().counts
    scenario.queue.waiting.clear()
    save(scenario.evidence, tmp_path)
    assert {violation.rule for violation in check_directory(tmp_path).violations} == {ONE_PLACE}


def test_tenants_in_turn_are_fair() -> None:
    scenario = Scenario()
    for message, tenant in (("a1", "acme"), ("a2", "acme"), ("b1", "globex")):
        scenario.publish(message, tenant=tenant)
    for message, tenant in (("a1", "acme"), ("b1", "globex"), ("a2", "acme")):
        scenario.handle(message, tenant)
    verdict = scenario.verdict()
    assert verdict.violations == []
    assert verdict.counts["turns checked for fairness"] == 2


def handing_off() -> tuple[Scenario, QueueEvidence]:
    scenario = Scenario(QueuePlace("orders", "durable", results="results"))
    results = QueueEvidence(QueuePlace("results", "durable"))
    scenario.evidence.queues.append(results)
    scenario.publish("order")
    scenario.settle("order", scenario.claim("order"), how="handed_off")
    result = replace(scenario.queue.journal[0], n=1, id="id-result", key="of order")
    results.journal.append(result)
    results.waiting.append("id-result")
    return scenario, results


def test_a_hand_off_with_its_result_is_whole() -> None:
    scenario, _ = handing_off()
    verdict = scenario.verdict()
    assert verdict.violations == []
    assert verdict.counts["hand-offs"] == 1


def test_a_hand_off_without_its_result_is_found() -> None:
    scenario, results = handing_off()
    results.journal.clear()
    results.waiting.clear()
    assert scenario.broken() == {"a hand-off happens as a whole"}


def test_a_result_that_is_published_twice_is_found() -> None:
    scenario, results = handing_off()
    results.journal.append(replace(results.journal[0], n=2, id="id-again"))
    results.waiting.append("id-again")
    assert "a hand-off happens as a whole" in scenario.broken()


def test_a_sink_that_misses_or_repeats_a_message_is_found() -> None:
    for written in ({}, {"event": 2}):
        scenario = Scenario(QueuePlace("events", "durable"))
        scenario.publish("event")
        scenario.record("claimed", "event")
        scenario.record("acked", "event")
        scenario.evidence.sink["events"] = scenario.queue.completed.__class__({"event": 1})
        assert scenario.broken() == set()
        scenario.evidence.sink["events"] = scenario.queue.completed.__class__(written)
        assert scenario.broken() == {"the sink has every message once"}


def lost_at_failover(place: QueuePlace, losses: tuple[tuple[float, float], ...]) -> Scenario:
    scenario = Scenario(place, losses)
    scenario.intend("lost")
    scenario.confirm()
    return scenario


def test_a_write_that_a_stale_replica_missed_is_counted_and_not_a_violation() -> None:
    verdict = lost_at_failover(REPLICATED, ((0.0, 5.0),)).verdict()
    assert verdict.violations == []
    assert verdict.counts["confirmed publishes lost with a stale failover"] == 1


def test_a_write_before_the_replica_lost_its_link_must_survive() -> None:
    assert lost_at_failover(REPLICATED, ((100.0, 105.0),)).broken() == {STORED_ONCE}


def test_a_write_that_a_replica_has_confirmed_must_survive() -> None:
    assert lost_at_failover(CONFIRMING, ((0.0, 5.0),)).broken() == {STORED_ONCE}


def test_a_key_that_should_not_be_left_is_found() -> None:
    scenario = kept()
    scenario.evidence.keys.append(StoredKey("orders::processing", "hash", None, 1))
    assert scenario.broken() == {"nothing is left but what the design says"}


def at_the_limit() -> tuple[Scenario, str]:
    """A tenant that may have one message in flight has one, and another message waits. Returns the lease."""
    scenario = Scenario(LIMITED)
    for message in ("first", "second"):
        scenario.publish(message, tenant="acme")
    return scenario, scenario.claim("first", tenant="acme")


def test_a_tenant_above_its_limit_in_flight_is_found() -> None:
    scenario, lease = at_the_limit()
    scenario.handle("second", tenant="acme")
    scenario.settle("first", lease, tenant="acme")
    assert scenario.broken() == {"no tenant exceeds its limit in flight"}


def test_a_message_that_is_settled_makes_room_and_so_does_an_old_lease() -> None:
    scenario, lease = at_the_limit()
    scenario.settle("first", lease, tenant="acme")
    scenario.handle("second", tenant="acme")
    assert scenario.broken() == set()
    scenario, lease = at_the_limit()
    scenario.time += LEASE
    scenario.handle("second", tenant="acme")
    scenario.settle("first", lease, tenant="acme")
    assert scenario.broken() == set()


def test_a_message_that_overtook_another_of_its_tenant_is_found() -> None:
    scenario = Scenario(ORDERED)
    for message in ("first", "second"):
        scenario.publish(message, tenant="acme")
    scenario.publish("other", tenant="globex")
    scenario.handle("other", tenant="globex")
    lease = scenario.claim("first", tenant="acme")
    scenario.handle("second", tenant="acme")
    scenario.settle("first", lease, tenant="acme")
    assert scenario.broken() == {"the messages of a tenant are handled in order"}


def test_a_delayed_message_may_be_overtaken_and_a_retried_one_may_not() -> None:
    scenario = Scenario(ORDERED)
    scenario.publish("delayed", tenant="acme")
    scenario.record("delayed", "delayed", "acme")
    for message in ("first", "second"):
        scenario.publish(message, tenant="acme")
    scenario.handle("first", tenant="acme")
    scenario.handle("delayed", tenant="acme")
    lease = scenario.claim("second", tenant="acme")
    scenario.say("consumer", "handled", **scenario.seen("second", lease))
    scenario.record("retried", "second", "acme")
    scenario.settled("second", lease, how="retried")
    scenario.publish("third", tenant="acme")
    scenario.queue.waiting.append("id-third")
    scenario.handle("second", tenant="acme")
    assert scenario.broken() == set()


def ticks(*seconds: int) -> Scenario:
    """A schedule that published messages for these seconds of a minute."""
    scenario = Scenario(TICKING)
    for place, second in enumerate(seconds):
        tick = f"2026-01-01T00:00:{second:02}+00:00"
        scenario.record("published", f"tick-{place}", key=TICK_KEY, tick=tick)
        scenario.queue.waiting.append(f"id-tick-{place}")
    return scenario


def test_ticks_that_follow_each_other_are_counted() -> None:
    verdict = ticks(2, 4, 6).verdict()
    assert verdict.violations == []
    assert verdict.counts["ticks of schedules"] == 3


def test_a_tick_that_was_published_twice_or_never_is_found() -> None:
    assert ticks(2, 4, 4, 6).broken() == {"each tick is published once"}
    assert ticks(2, 6).broken() == {"each tick is published once"}


def test_a_tick_of_a_schedule_that_nobody_defined_is_found() -> None:
    scenario = ticks(2)
    scenario.queue.place = QueuePlace("orders", "durable")
    assert scenario.broken() == {"each tick is published once"}


def stored_in(partition: int) -> Scenario:
    """A message with a partition key, stored in this partition, behind one in each of the two."""
    scenario = Scenario(SPREAD)
    for message, number in (("a", 0), ("b", 1)):
        scenario.intend(message)
        scenario.record("published", message, key=message, partition=number)
        scenario.confirm()
        scenario.queue.waiting.append(f"id-{message}")
    scenario.intend("keyed", partition_key="key")
    scenario.record("published", "keyed", key="keyed", partition=partition)
    scenario.confirm()
    scenario.queue.waiting.append("id-keyed")
    return scenario


def test_a_message_in_another_partition_than_its_key_names_is_found() -> None:
    right = partition_of("key", 2)
    assert stored_in(right).broken() == set()
    assert stored_in(right).verdict().counts["messages found in the partition of their key"] == 1
    assert stored_in(1 - right).broken() == {"a key names its partition"}


def test_a_gap_in_the_journal_of_one_partition_is_found() -> None:
    scenario = stored_in(partition_of("key", 2))
    scenario.queue.journal = [entry for entry in scenario.queue.journal if entry.id != "id-b"]
    scenario.record("published", "b", key="b", partition=1)
    scenario.queue.journal[-1] = replace(scenario.queue.journal[-1], n=7)
    assert scenario.broken() == {"the journal has no gap"}
