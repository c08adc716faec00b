"""The verdict on a queue, from its last samples."""

from datetime import UTC, datetime
from typing import Any

import pytest

from redis_message_queue.dashboard.queue_verdict import Level, findings
from redis_message_queue.dashboard.rates import rates_of_journal, rates_of_records
from redis_message_queue.dashboard.sample import GroupLag, HeldLease, Sample
from redis_message_queue.dashboard.text import payload_views, points, rate
from redis_message_queue.values.messages import ConnectedWorker, MessageRecord, QueueStats
from redis_message_queue.values.wording import age, one_line

pytestmark = pytest.mark.topic("Dashboard")

NOW = 1_900_000_000.0


def sample(at: float = NOW, *, oldest: float | None = None, **given) -> Sample:
    counts = dict.fromkeys(("pending", "processing", "delayed", "completed", "failed", "dead_letters", "tenants"), 0)
    stats = {name: given.pop(name) for name in list(given) if name in counts and isinstance(given[name], int)}
    return Sample(at=at, stats=QueueStats(**counts | stats, oldest_pending_seconds=oldest), **given)


def lease(number: int, ends_at: float) -> HeldLease:
    return HeldLease(number.to_bytes(36, "big"), ends_at)


def verdict(*samples: Sample) -> tuple[Level, str]:
    history = [samples[0]]
    for one in samples[1:]:
        one, history[-1] = one.after(history[-1]), history[-1].without_messages()
        history.append(one)
    found = findings(history)[0]
    return found.level, found.text


def dead(seconds: float, error: str = "no such customer") -> MessageRecord:
    return MessageRecord(finished_at=datetime.fromtimestamp(NOW - seconds, UTC), error_type="ValueError", error=error)


def test_an_empty_queue_is_idle():
    assert verdict(sample()) == (Level.IDLE, "Empty: nothing waits and nothing is in flight.")


def test_a_queue_whose_messages_are_not_due_is_idle():
    level, text = verdict(sample(delayed=2, first_due_at=NOW + 90))
    assert (level, text) == (Level.IDLE, "Nothing to do now: 2 messages delayed; the next is due in 1 min.")


def test_a_queue_that_is_served_works():
    level, text = verdict(sample(pending=5, processing=2, oldest=1.5, leases=(lease(1, NOW + 300),)))
    assert (level, text) == (Level.WORKING, "Working: 2 in flight, 5 waiting, the oldest for 1.5 s.")


def test_a_message_that_has_just_come_is_not_stuck():
    assert verdict(sample(pending=1, oldest=0.2))[0] is Level.WORKING


def test_a_lease_that_ended_without_anybody_taking_over():
    level, text = verdict(sample(processing=3, leases=tuple(lease(number, NOW - 720) for number in range(3))))
    assert level is Level.STUCK
    assert text.startswith("3 messages are in flight with no consumer renewing: the first lease ended 12 min ago")


def test_a_lease_that_ended_a_moment_ago_is_not_stuck():
    assert verdict(sample(processing=1, leases=(lease(1, NOW - 1),)))[0] is Level.WORKING


def test_nobody_consumes():
    history = [sample(NOW - 30 + step, pending=7, oldest=240 - 30 + step) for step in range(0, 31, 2)]
    assert verdict(*history) == (
        Level.STUCK,
        "7 messages waiting, the oldest for 4 min, and none in flight: no worker is connected.",
    )


def test_handlers_that_hang():
    held = (lease(1, NOW + 200), lease(2, NOW + 200))
    history = [sample(NOW - 80 + s, pending=7, processing=2, oldest=300 + s, leases=held) for s in range(0, 81, 2)]
    level, text = verdict(*history)
    assert level is Level.STUCK
    assert "no consumer claimed a message in the last 1 min: the same 2 stay in flight" in text


def worker(number: int, claimed_ago: float | None, *, at: float = NOW) -> ConnectedWorker:
    return ConnectedWorker(
        consumer=f"packer@host7:{number}",
        host="host7",
        pid=number,
        version="0.1.0",
        concurrency=1,
        since=datetime.fromtimestamp(at - 3_600, UTC),
        last_claim=None if claimed_ago is None else datetime.fromtimestamp(at - claimed_ago, UTC),
    )


@pytest.mark.promise("The dashboard knows who works on a queue, also while it waits, and says when nobody does.")
@pytest.mark.parametrize(
    ("workers", "processing", "claim_at", "level", "text"),
    [
        (
            [],
            0,
            None,
            Level.STUCK,
            "7 messages waiting, the oldest for 5 min, and none in flight: no worker is connected.",
        ),
        ([], 0, NOW - 70, Level.STUCK, "and none in flight: no worker is connected."),
        ([], 0, NOW - 40, Level.WARNING, "none in flight: no registered worker, but messages are being claimed."),
        ([], 2, NOW - 70, Level.STUCK, "the same 2 stay in flight; no worker is connected."),
        ([], 2, NOW - 40, Level.WARNING, "although 2 are in flight."),
        ([240, 300, 250], 3, None, Level.STUCK, "the same 3 stay in flight; 3 workers, all busy for 4 min."),
        ([240], 1, None, Level.STUCK, "the same 1 stay in flight; 1 worker, busy for 4 min."),
        ([240, 3], 2, None, Level.WARNING, "although 2 are in flight."),
        ([240], 1, NOW - 20, Level.WARNING, "although 1 are in flight."),
        ([70, None], 0, None, Level.STUCK, "none in flight: 2 workers connected, the last claim 1 min ago."),
        ([None], 0, None, Level.STUCK, "none in flight: 1 worker connected, and none has claimed a message yet."),
    ],
)
def test_the_verdict_knows_the_workers(workers, processing, claim_at, level, text):
    """What waits stands still, unless somebody was seen to claim."""
    ago = {f"{number:016x}": worker(number, one) for number, one in enumerate(workers)}
    usual: dict[str, Any] = {"pending": 7, "processing": processing, "oldest": 300.0}
    history = [sample(NOW - 120 + step, **usual) for step in range(0, 120, 2)]
    if claim_at is not None:
        before = [sample(one.at, **usual | {"pending": 8}) for one in history if one.at < claim_at]
        history[: len(before)] = before
    found = verdict(*history, sample(NOW, workers=ago, **usual))
    assert found[0] is level, found
    assert found[1].endswith(text), found


@pytest.mark.promise("The dashboard says when a worker that was killed still holds messages.")
def test_a_killed_worker_is_noticed_when_its_entry_expires():
    """Not when its leases end."""
    process = (lease(7, 0).process, worker(7, 5.0))
    held = (lease(7, NOW + 250), lease(7, NOW + 260))
    connected = sample(NOW - 20, processing=2, leases=held, workers=dict([process]))
    assert verdict(connected)[0] is Level.WORKING
    level, text = verdict(
        connected, sample(NOW - 10, processing=2, leases=held), sample(NOW, processing=2, leases=held)
    )
    assert (level, text.partition(" ")[2]) == (
        Level.WARNING,
        "is gone and holds 2 messages: the first lease ends in 4 min.",
    )
    assert verdict(connected, sample(NOW, processing=2, leases=held, workers=dict([process])))[0] is Level.WORKING


@pytest.mark.parametrize(
    "sign", [{"pending": 6}, {"leases": (lease(9, NOW + 200),)}, {"oldest": 5.0}], ids=["fewer", "lease", "oldest"]
)
def test_a_sign_of_a_claim_ends_the_silence(sign):
    usual: dict[str, Any] = {"pending": 7, "processing": 1, "oldest": 90.0, "leases": (lease(1, NOW + 200),)}
    history = [sample(NOW - 80 + step, **usual) for step in range(0, 80, 2)]
    assert verdict(*history, sample(NOW, **usual | sign))[0] is Level.WORKING


def test_a_pause_explains_what_stands_still():
    late = lease(1, NOW - 600)
    paused = sample(
        pending=7, processing=1, delayed=1, oldest=600, leases=(late,), first_due_at=NOW - 60, paused_at=NOW - 720
    )
    assert [one.text for one in findings([paused])] == [
        "Paused for 12 min: consumers claim nothing. 7 messages waiting, 1 in flight."
    ]


def test_delayed_messages_that_are_overdue():
    level, text = verdict(sample(delayed=2, first_due_at=NOW - 180))
    assert (level, text.partition(":")[0]) == (Level.STUCK, "Delayed messages are overdue, the first by 3 min")


def test_a_backlog_that_grows():
    history = [sample(NOW - 40 + s, pending=100 + 50 * s, processing=4, oldest=5.0) for s in range(0, 41, 2)]
    assert verdict(*history)[1].startswith("The backlog grows by 50 messages a second: 2,100 wait")


def test_consumers_that_are_behind():
    level, text = verdict(sample(pending=5, processing=2, oldest=600))
    assert (level, text) == (
        Level.WARNING,
        "The oldest message has waited for 10 min, although 2 are in flight.",
    )


@pytest.mark.promise("The dashboard says that a queue with dead letters needs attention, however old they are.")
def test_new_dead_letters_are_news_and_old_ones_need_attention():
    fresh = sample(dead_letters=(dead(10), dead(20), dead(30, "other")))
    assert verdict(fresh) == (
        Level.WARNING,
        "3 new dead letters in the last 5 min: most often ValueError: no such customer.",
    )
    old = Sample(at=NOW, stats=sample(dead_letters=40).stats, dead_letters=(dead(86_400 * 3),))
    assert verdict(old) == (Level.WARNING, "40 dead letters, the newest 3 days old.")
    kept = Sample(at=NOW, stats=sample(failed=40).stats)
    assert verdict(kept)[0] is Level.IDLE, "a list that the user wanted"


def test_a_streaming_query_that_is_gone():
    group = GroupLag("nightly", messages=300, batches=2, has_query=False)
    assert verdict(sample(processing=300, groups=(group,)))[0] is Level.WARNING
    running = GroupLag("nightly", messages=300, batches=2, has_query=True, since=NOW)
    assert verdict(sample(processing=300, groups=(running,)))[0] is Level.WORKING


def test_a_query_that_finishes_no_batch_needs_attention():
    def at(seconds: float, acked: int = 7) -> Sample:
        group = GroupLag("nightly", 300, batches=2, has_query=True, acked=acked, since=NOW + seconds)
        return sample(NOW + seconds, processing=300, groups=(group,))

    level, text = verdict(at(0), at(100), at(200), at(310))
    assert level is Level.WARNING
    assert text == "Consumer group nightly holds 300 messages, and its query has not finished a batch for 5 min."
    assert verdict(at(0), at(100), at(200, acked=8), at(310, acked=8))[0] is Level.WORKING


def test_messages_that_stay_without_a_lease():
    history = [sample(NOW - 70 + step, processing=2, unleased=2) for step in range(0, 71, 2)]
    assert verdict(*history)[1] == "2 messages in processing without a lease for at least 1 min."


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((None, "–"), (0, "0 ms"), (0.25, "250 ms"), (1, "1.0 s"), (59.4, "59 s"), (60, "1 min"), (75, "1 min")),  # noqa: RUF001
        *(
            (720, "12 min"),
            (3_600, "1 h"),
            (11_100, "3 h 5 min"),
            (86_400, "1 day"),
            (2 * 86_400 + 3_600, "2 days 1 h"),
        ),
        (40 * 86_400, "40 days"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert age(seconds) == said


def test_rates_have_the_digits_that_matter():
    assert [rate(None), rate(0.04), rate(3.14), rate(12_345.6)] == ["–", "0.0/s", "3.1/s", "12,346/s"]  # noqa: RUF001


def test_a_long_or_hostile_text_is_one_short_line():
    assert one_line("a\nb\x1b[0m\u202e") == "a\\nb\\x1b[0m\\u202e"
    assert len(one_line("x" * 10_000_000)) == 160
    assert one_line(b"\xff") == "base64:/w=="


def test_a_payload_is_shown_as_json_text_or_hex():
    assert [title for title, _ in payload_views('{"a": [1]}')] == ["JSON, formatted", "Text"]
    assert payload_views("a\\tb\tc\x00") == [("Text", "a\\tb\tc\\x00")]
    assert payload_views(b"\xff\x00\x01") == [("Bytes in hex", "ff 0001")]
    assert payload_views("[" * 100_000) == [("Text", "[" * 100_000)]
    assert payload_views(None) == []


def test_a_line_has_a_point_for_each_value_and_stays_inside():
    assert points([0, 5, 10], 100, 22) == "0.0,21.0 50.0,11.0 100.0,1.0"
    assert points([], 100, 22) == ""
    assert points([7], 100, 22) == "0.0,1.0 100.0,1.0"


def test_rates_come_from_the_records_of_handled_messages():
    def record(seconds: float) -> MessageRecord:
        times = [datetime.fromtimestamp(NOW - seconds - earlier, UTC) for earlier in (0, 2, 5)]
        return MessageRecord(finished_at=times[0], claimed_at=times[1], published_at=times[2])

    found = rates_of_records([record(1), record(2), record(60)], NOW)
    assert (found.handled, found.wait_seconds, found.handling_seconds) == (0.2, 3.0, 2.0)
    busy = rates_of_records([record(number / 100) for number in range(1, 101)], NOW)
    assert busy.handled == pytest.approx(100)


def entry(seconds: float, event: str, message: int) -> dict[bytes, bytes]:
    return {b"at": b"%d" % int((NOW - seconds) * 1e6), b"event": event.encode(), b"id": b"%d" % message}


def test_rates_come_from_the_journal():
    entries = [entry(1, "acked", 1), entry(2, "claimed", 1), entry(5, "published", 1), entry(60, "published", 9)]
    found = rates_of_journal(entries, 4, False, None, NOW)
    assert (found.published, found.handled, found.failed) == (0.1, 0.1, 0.0)
    assert (found.wait_seconds, found.handling_seconds) == (3.0, 1.0)


def test_the_serial_numbers_tell_how_much_happened_between_two_looks():
    entries = [entry(0.1, "published", number) for number in range(500)]
    first = rates_of_journal(entries, 1_000, True, None, NOW - 2)
    assert rates_of_journal(entries, 9_000, True, first, NOW).published == pytest.approx(4_000)


def test_a_journal_that_somebody_else_wrote_into_breaks_nothing():
    assert rates_of_journal([{b"x": b"y"}, {b"at": b"no", b"event": b"acked"}], 0, False, None, NOW).handled == 0


def test_a_schedule_that_nobody_follows_is_stuck():
    level, text = verdict(sample(schedules=1, next_tick_at=NOW - 720))
    assert (level, text) == (Level.STUCK, "A schedule is overdue by 12 min: its message was not published.")
    assert verdict(sample(schedules=1, next_tick_at=NOW + 1))[0] is Level.IDLE


def test_a_paused_tenant_explains_what_waits():
    level, text = verdict(sample(pending=5, oldest=720.0, paused_tenants=2, tenants=2))
    assert level is Level.WARNING
    assert text == ("2 tenants are paused: consumers claim nothing of theirs. 5 messages waiting in all, 0 in flight.")
