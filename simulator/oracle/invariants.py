"""The invariants by name, and what is raised when one of them does not hold."""

from __future__ import annotations

from typing import NoReturn

INVARIANTS = {
    "one place": "After every script a message is in exactly one place, and it got there by a step that may move it.",
    "accounted for": "A confirmed publish is stored once, and never lost while the server keeps what it acknowledged.",
    "fencing": "Only the holder of the latest claim can settle, requeue, retry, hand off or renew; nobody refuses it.",
    "lease": "Nobody gets a message whose lease another consumer still has.",
    "known loss": "No handler starts for a lease that its process knows to be lost.",
    "deduplication": "Within its window, one message of a deduplication key is accepted; the others are duplicates.",
    "fairness": "While a tenant waits, every other tenant is served at most once per unit of its weight.",
    "delivery limit": "A message becomes a dead letter when its deliveries are used up or its time to live is over, "
    "neither earlier nor later; consumers are told the counts.",
    "full memory": "A full server refuses a publish before anything changes, and everything that drains it works.",
    "scripts do not fail": "No script ends in an error of its own, or half done.",
    "wake-up": "No message waits beside an idle consumer: for one slice with faults or beside a streaming query, "
    "otherwise not at all.",
    "bounded wait": "A call with a time limit ends within it plus one socket timeout.",
    "state": "The keys fit together: leases, counts, ring, backlog, alarms and expiry times.",
    "batches": "A sealed batch never changes, and only the query that holds the group moves it on.",
    "left behind": "When everybody has finished, no message and no helper key is left.",
    "order": "Messages wait in the order of their publishes; requeued ones return to the front, in their order.",
    "handled": "A message is acknowledged after its handler has returned, and for no other reason.",
    "drain": "After a drain that returned True, the queue object holds no message.",
    "cancelled": "A claim drops a waiting message if and only if it was cancelled, and the mark goes with it.",
    "paused": "Nobody gets a message of a tenant while it is paused, and none of those that wait is touched.",
    "in flight": "No tenant has more messages in flight than it may, and a tenant with less is not held back.",
    "tenant order": "With `ordered_tenants`, nobody gets a message before all earlier ones of its tenant have ended.",
    "outage": "A node of a cluster that is away stops its own messages only: loops go on, keep leases and serve the "
    "others.",
    "empty": "A loop that ends because its queue is empty leaves no message that it could have had.",
    "schedules": "Each tick of a schedule is published once: none is lost, none early, none without its schedule.",
    "imports": "A message of an export is stored once, however often it is sent.",
    "partitions": "A message is in the partition that its key names; a client with another number changes nothing.",
    "journal": "The journal has an entry for a change if and only if the change was made.",
    "errors": "Calls end in the errors that their documentation names.",
}


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        assert invariant in INVARIANTS
        self.invariant = invariant
        self.what = what


def fail(invariant: str, what: str) -> NoReturn:
    """Say that an invariant does not hold."""
    raise Violation(invariant, what)
