"""The checker finds every violation that is planted, and accuses nobody of what is allowed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from chaos.checker import LEDGERS, RULES_FILE, Rules, check_directory
from chaos.evidence import QueueEvidence, StoredKey, save
from chaos.scenario import QueuePlace
from tests.chaos.stories import WINDOW, Story

STORED_ONCE = "every confirmed publish is stored once"
ONE_PLACE = "every message is in exactly one place"
FENCED = "no settlement by a lost lease"
REPLICATED = QueuePlace("clicks", "replicated")
CONFIRMING = QueuePlace("payments", "replicated", confirms=True)


def kept() -> Story:
    """A publish, a duplicate, a redelivery, a retry and a message that still waits."""
    story = Story()
    story.publish("a")
    story.publish("b", d="key")
    story.publish("c", d="key", outcome="suppressed")
    story.publish("d")
    story.publish("e")
    for message in ("a", "b"):
        story.handle(message)
    story.claim("d", who="dead consumer")
    story.settle("d", story.claim("d", event="reclaimed"))
    story.queue.waiting.append("id-e")
    return story


def test_a_campaign_without_violations_passes_and_is_counted() -> None:
    verdict = kept().verdict()
    assert verdict.violations == []
    assert verdict.counts["publishes confirmed"] == 4
    assert verdict.counts["publishes suppressed"] == 1
    assert verdict.counts["messages acked"] == 3
    assert verdict.counts["messages left in Redis"] == 1
    assert verdict.counts["deliveries"] == 4


def test_a_confirmed_publish_that_is_not_stored_is_found() -> None:
    story = kept()
    story.intend("lost")
    story.confirm()
    assert story.broken() == {STORED_ONCE}


def test_a_publish_that_is_stored_twice_is_found() -> None:
    story = kept()
    story.publish("twice")
    story.record("published", "twice-again", key="twice")
    story.queue.waiting += ["id-twice", "id-twice-again"]
    assert story.broken() == {STORED_ONCE}


def test_a_refused_publish_that_is_stored_is_found() -> None:
    story = kept()
    story.publish("refused", outcome="refused")
    story.queue.waiting.append("id-refused")
    assert story.broken() == {STORED_ONCE}


def test_an_unknown_outcome_may_be_stored_or_not() -> None:
    story = kept()
    story.publish("stored", outcome="unknown")
    story.publish("killed", outcome="none")
    story.queue.waiting += ["id-stored", "id-killed"]
    story.intend("not stored")
    story.confirm("unknown")
    assert story.broken() == set()


def test_a_message_that_nobody_published_is_found() -> None:
    story = kept()
    story.record("published", "invented", key="invented")
    story.queue.waiting.append("id-invented")
    assert story.broken() == {STORED_ONCE}


def test_a_suppressed_publish_without_an_original_is_found() -> None:
    story = kept()
    story.intend("suppressed", d="other")
    story.record("duplicate", "suppressed", of="id-that-never-was")
    story.confirm("suppressed")
    assert story.broken() == {STORED_ONCE}


def test_a_message_that_is_nowhere_is_found() -> None:
    story = kept()
    story.queue.waiting.clear()
    assert story.broken() == {ONE_PLACE}


def test_a_message_that_is_in_two_places_is_found() -> None:
    story = kept()
    story.queue.processing.append("id-e")
    assert story.broken() == {ONE_PLACE}


def test_a_message_that_lives_after_its_end_is_found() -> None:
    story = kept()
    story.record("claimed", "a")
    assert ONE_PLACE in story.broken()


def test_a_gap_in_the_journal_is_found() -> None:
    story = kept()
    story.queue.journal[-1] = replace(story.queue.journal[-1], n=99)
    assert story.broken() == {"the journal has no gap"}


def test_a_list_that_misses_a_message_is_found() -> None:
    story = kept()
    del story.queue.completed["a"]
    assert story.broken() == {"the lists agree with the journal"}


def test_a_list_that_has_a_message_twice_is_found() -> None:
    story = kept()
    story.queue.dead_letters["a"] += 1
    assert story.broken() == {"the lists agree with the journal"}


def test_a_duplicate_within_its_window_is_found_and_one_after_it_is_not() -> None:
    story = kept()
    story.queue.journal[1] = replace(story.queue.journal[1], at=story.time)
    story.publish("early", d="key")
    story.queue.waiting.append("id-early")
    assert story.broken() == {"no duplicate within a window"}
    story = kept()
    story.time += WINDOW
    story.publish("late", d="key")
    story.queue.waiting.append("id-late")
    assert story.broken() == set()


def test_a_window_that_has_passed_stays_so_when_the_clock_is_stepped_back() -> None:
    story = kept()
    story.time += WINDOW
    story.publish("when the clock was ahead")
    story.time -= WINDOW
    story.publish("after it", d="key")
    story.queue.waiting += ["id-when the clock was ahead", "id-after it"]
    assert story.broken() == set()


def test_the_same_key_for_two_tenants_is_no_duplicate() -> None:
    story = kept()
    story.publish("of acme", tenant="acme", d="key")
    story.queue.waiting.append("id-of acme")
    assert story.broken() == set()


def test_a_settlement_by_a_lost_lease_is_found() -> None:
    """The first consumer is too slow, the second one has begun, and the first one acknowledges."""
    story = kept()
    story.publish("slow")
    late = story.claim("slow", who="slow consumer")
    story.claim("slow", who="next consumer", event="reclaimed")
    story.settle("slow", late, who="slow consumer")
    assert FENCED in story.broken()


def test_a_late_consumer_that_is_refused_is_allowed() -> None:
    story = kept()
    story.publish("slow")
    late = story.claim("slow", who="slow consumer")
    story.settle("slow", story.claim("slow", who="next consumer", event="reclaimed"), who="next consumer")
    story.say("slow consumer", "handled", **story.seen("slow", late))
    story.settled("slow", late, who="slow consumer", how="stale")
    verdict = story.verdict()
    assert verdict.violations == []
    assert verdict.counts["settlements refused because the lease was lost"] == 1


def test_two_consumers_that_both_acknowledged_are_found() -> None:
    story = kept()
    story.publish("both")
    first = story.claim("both", who="one")
    second = story.claim("both", who="other", event="reclaimed")
    story.settle("both", second, who="other")
    story.say("one", "handled", **story.seen("both", first))
    story.settled("both", first, who="one")
    assert FENCED in story.broken()


def test_an_acknowledged_message_that_nobody_handled_is_found() -> None:
    story = kept()
    story.publish("skipped")
    story.claim("skipped")
    story.record("acked", "skipped")
    story.queue.completed["skipped"] += 1
    assert story.broken() == {"only handled messages are acknowledged"}


def test_a_loop_that_goes_on_under_a_new_lease_is_allowed() -> None:
    """It gets its own message again while its handler works, and acknowledges it with the second lease."""
    story = kept()
    story.publish("long")
    lease = story.claim("long")
    story.record("reclaimed", "long")
    story.say("consumer", "claimed", **story.seen("long", "lease-long-2"))
    story.say("consumer", "handled", **story.seen("long", lease))
    story.record("acked", "long")
    story.queue.completed["long"] += 1
    story.settled("long", "lease-long-2")
    assert story.broken() == set()


def test_a_tenant_that_is_served_twice_while_another_waits_is_found() -> None:
    story = Story()
    for message, tenant in (("a1", "acme"), ("a2", "acme"), ("b1", "globex")):
        story.publish(message, tenant=tenant)
    for message, tenant in (("a1", "acme"), ("a2", "acme"), ("b1", "globex")):
        story.handle(message, tenant)
    assert story.broken() == {"fairness"}


def served_while_nobodys_message_waits(*messages: str) -> set[str]:
    story = Story()
    story.publish("waits")
    for message in messages:
        story.publish(message, tenant="acme")
    for message in messages:
        story.handle(message, "acme")
    story.handle("waits")
    return story.broken()


def test_a_message_without_a_tenant_waits_for_one_turn_of_another_at_most() -> None:
    assert served_while_nobodys_message_waits("a1") == set()
    assert served_while_nobodys_message_waits("a1", "a2") == {"fairness"}


def test_a_redelivery_is_a_turn() -> None:
    """One tenant's expired message goes before a message that waits, and a second one does not."""
    story = Story()
    for message in ("a1", "a2"):
        story.publish(message, tenant="acme")
        story.claim(message, tenant="acme")
    story.publish("waits")
    story.record("reclaimed", "a1", "acme")
    assert "fairness" not in story.broken()
    story.record("reclaimed", "a2", "acme")
    assert "fairness" in story.broken()


def test_a_campaign_can_be_checked_again_from_its_directory(tmp_path: Path) -> None:
    story = kept()
    story.evidence.keys.append(StoredKey("orders::completed", "list", None, 3))
    save(story.evidence, tmp_path)
    (tmp_path / RULES_FILE).write_text(json.dumps(asdict(Rules(WINDOW, [(1.0, 2.0)]))))
    (tmp_path / LEDGERS).mkdir()
    lines = [json.dumps(entry) for entry in story.ledger]
    (tmp_path / LEDGERS / "all.jsonl").write_text("\n".join([*lines, ""]))
    assert check_directory(tmp_path).counts == story.verdict().counts
    story.queue.waiting.clear()
    save(story.evidence, tmp_path)
    assert {violation.rule for violation in check_directory(tmp_path).violations} == {ONE_PLACE}


def test_tenants_in_turn_are_fair() -> None:
    story = Story()
    for message, tenant in (("a1", "acme"), ("a2", "acme"), ("b1", "globex")):
        story.publish(message, tenant=tenant)
    for message, tenant in (("a1", "acme"), ("b1", "globex"), ("a2", "acme")):
        story.handle(message, tenant)
    verdict = story.verdict()
    assert verdict.violations == []
    assert verdict.counts["turns checked for fairness"] == 2


def handing_off() -> tuple[Story, QueueEvidence]:
    story = Story(QueuePlace("orders", "durable", results="results"))
    results = QueueEvidence(QueuePlace("results", "durable"))
    story.evidence.queues.append(results)
    story.publish("order")
    story.settle("order", story.claim("order"), how="handed_off")
    result = replace(story.queue.journal[0], n=1, id="id-result", key="of order")
    results.journal.append(result)
    results.waiting.append("id-result")
    return story, results


def test_a_hand_off_with_its_result_is_whole() -> None:
    story, _ = handing_off()
    verdict = story.verdict()
    assert verdict.violations == []
    assert verdict.counts["hand-offs"] == 1


def test_a_hand_off_without_its_result_is_found() -> None:
    story, results = handing_off()
    results.journal.clear()
    results.waiting.clear()
    assert story.broken() == {"a hand-off happens as a whole"}


def test_a_result_that_is_published_twice_is_found() -> None:
    story, results = handing_off()
    results.journal.append(replace(results.journal[0], n=2, id="id-again"))
    results.waiting.append("id-again")
    assert "a hand-off happens as a whole" in story.broken()


def test_a_sink_that_misses_or_repeats_a_message_is_found() -> None:
    for written in ({}, {"event": 2}):
        story = Story(QueuePlace("events", "durable"))
        story.publish("event")
        story.record("claimed", "event")
        story.record("acked", "event")
        story.evidence.sink["events"] = story.queue.completed.__class__({"event": 1})
        assert story.broken() == set()
        story.evidence.sink["events"] = story.queue.completed.__class__(written)
        assert story.broken() == {"the sink has every message once"}


def lost_at_failover(place: QueuePlace, losses: tuple[tuple[float, float], ...]) -> Story:
    story = Story(place, losses)
    story.intend("lost")
    story.confirm()
    return story


def test_a_write_that_a_stale_replica_missed_is_counted_and_not_a_violation() -> None:
    verdict = lost_at_failover(REPLICATED, ((0.0, 5.0),)).verdict()
    assert verdict.violations == []
    assert verdict.counts["confirmed publishes lost with a stale failover"] == 1


def test_a_write_before_the_replica_lost_its_link_must_survive() -> None:
    assert lost_at_failover(REPLICATED, ((100.0, 105.0),)).broken() == {STORED_ONCE}


def test_a_write_that_a_replica_has_confirmed_must_survive() -> None:
    assert lost_at_failover(CONFIRMING, ((0.0, 5.0),)).broken() == {STORED_ONCE}


def test_a_key_that_should_not_be_left_is_found() -> None:
    story = kept()
    story.evidence.keys.append(StoredKey("orders::processing", "hash", None, 1))
    assert story.broken() == {"nothing is left but what the design says"}
