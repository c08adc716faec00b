"""What clients are told, and what they do with it."""

from __future__ import annotations

import math
from typing import Any

from redis_message_queue.protocol.consume.claim import read_reply
from redis_message_queue.protocol.port import Call
from simulator.loop import Process
from simulator.oracle.invariants import fail
from simulator.oracle.steps import by_name, scores
from simulator.oracle.ticks import name_of
from simulator.oracle.turns import Turns

_HELD = ("settle", "requeue", "retry_later", "hand_off")  # scripts that name the leases of their caller
_LATE = 0.1  # seconds that a message may wait beside an idle consumer, without faults
_SLICE = 1.0


class Clients(Turns):
    """Knows which leases each process believes in, and which publishes were confirmed."""

    def published(self, payload: bytes, result: bool) -> None:
        """A publish returned."""
        if result:
            if payload in self._rolled_back and payload not in self.account.accepted_us:
                return  # the server lost it while the reply was on its way
            if payload not in self.account.accepted_us:
                fail("accounted for", f"the publish of {payload.decode()} returned True, and it was never stored")
            self.confirmed.add(payload)
            return
        if payload in self.account.accepted_us:
            fail("accounted for", f"the publish of {payload.decode()} returned False, and it was stored")
        if payload not in self._called_duplicates:
            fail("deduplication", f"the publish of {payload.decode()} returned False, and the server did not say so")

    def publish_refused(self, payload: bytes) -> None:
        """A publish raised an error that says that nothing was stored."""
        if payload in self.account.accepted_us:
            fail("accounted for", f"the publish of {payload.decode()} was refused, and it was stored")
        self.refused.add(payload)

    def paused(self, tenant: str) -> None:
        """An operator was told that a tenant is paused: nobody gets a message of it until somebody resumes it."""
        self._told_paused.add(tenant)

    def resumes(self, tenant: str) -> None:
        """An operator is about to change what is known of a tenant."""
        self._told_paused.discard(tenant)

    def cancelled(self, identity: bytes, outcome: str) -> None:
        """A message that is known to be somewhere, or gone, leaves no marks in other partitions."""
        if outcome in ("in_flight", "cancelled"):
            for name, keys in self._keys.items():
                if identity in scores(self._keyspace().values.get(keys.cancelled.encode())):
                    fail("cancelled", f"{identity.hex()} was called {outcome}, and has a mark in {name}")

    def imported(self, payload: bytes, is_new: bool) -> None:
        """An import said whether it has stored a message, or had done so before."""
        known = self.account.accepted_us.keys() | self._rolled_back
        if payload not in known:
            fail("imports", f"{payload.decode()} was called {'new' if is_new else 'known'}, and was never stored")
        if is_new and payload in self._called_new and payload not in self._rolled_back:
            fail("imports", f"{payload.decode()} was called new twice")
        if is_new:
            self._called_new.add(payload)

    def heard(self, process: Process, call: Call, sent_at: float, answer: Any) -> None:
        """A process got the answer to a claim, a renewal or anything else that tells it about its leases."""
        command, _, arguments = call
        name = command.script.name
        if name == "claim":
            given = by_name(command.script, (*command.settings, *arguments))
            nonce = given["holder"] + int(given["call"]).to_bytes(5, "big")
            lease = given["lease_us"] / 1_000_000 or math.inf
            for claim in read_reply(answer, 0.0, nonce).claims:
                self._leases_known[process.name, name_of(claim.envelope.stored)] = (claim.token, sent_at + lease)
        elif name in ("take", "ack_and_take"):
            given = by_name(command.script, (*command.settings, *arguments))
            for claim in read_reply(answer, 0.0, given["nonce"]).claims if isinstance(answer, bytes) else ():
                known = (claim.token, sent_at + given["lease_us"] / 1_000_000)
                self._leases_known[process.name, name_of(claim.envelope.stored)] = known
            if name == "ack_and_take" and isinstance(answer, bytes):
                self._told_ended.add(given["token"])
                self._told_settled.add(given["token"][:16])
        elif name == "ack_one" and answer == b"1":
            token = by_name(command.script, (*command.settings, *arguments))["token"]
            self._told_ended.add(token)
            self._told_settled.add(token[:16])
        elif name == "renew":
            given = by_name(command.script, (*command.settings, *arguments))
            tokens = given["tokens"]
            renewed = {tokens[36 * at : 36 * at + 36]: mark == ord("1") for at, mark in enumerate(answer)}
            for (who, payload), (token, until) in list(self._leases_known.items()):
                if who == process.name and token in renewed:
                    until = max(until, sent_at + given["lease_us"] / 1_000_000)
                    if renewed[token]:
                        self._leases_known[who, payload] = (token, until)
                    else:
                        self._lost.add((who, token))
        elif name in _HELD:
            tokens = by_name(command.script, (*command.settings, *arguments))["tokens"]
            marks = answer[: len(tokens) // 36]  # "-": the target of a hand-off is full, and nothing has ended
            self._told_ended |= {tokens[36 * at : 36 * at + 36] for at, mark in enumerate(marks) if mark in b"01"}
            self._told_settled |= {tokens[36 * at : 36 * at + 16] for at, mark in enumerate(marks) if mark == ord("1")}

    def acknowledged(self, message_id: str) -> None:
        """A queue object reported that a message is acknowledged."""
        if bytes.fromhex(message_id) not in self._told_settled:
            fail("accounted for", f"{message_id} was reported as acknowledged, and Redis has not said so")

    def handler_started(self, process: Process, payload: bytes, now: float) -> None:
        """A handler got a message."""
        known = self._leases_known.get((process.name, payload))
        if known is None:
            fail("known loss", f"{process} handles {payload.decode()}, which it never claimed")
        token, until = known
        if (process.name, token) in self._lost:
            fail("known loss", f"{process} started {payload.decode()} after its renewal had been refused")
        if now >= until:
            fail("known loss", f"{process} started {payload.decode()} {now - until:.3f} s after its lease had ended")

    def handler_returned(self, process: Process, payload: bytes) -> None:
        """A handler has returned without an error."""
        self._returned.add((process.name, payload))

    def drained(self, process: Process, given_up: set[bytes]) -> None:
        """A drain returned True, and no handler of this process is at work."""
        for payload in self.held_by({process.name}, except_for=given_up):
            if payload.startswith(b"orders/"):
                fail("drain", f"{process} was drained and still holds {payload.decode()}")

    def tokens_of(self, process: Process) -> set[bytes]:
        """The tokens of the messages that this process was told it has claimed."""
        return {token for (who, _), (token, _) in self._leases_known.items() if who == process.name}

    def held_by(self, processes: set[str], *, except_for: set[bytes]) -> list[bytes]:
        """The messages in flight that were claimed by one of these processes, and that it can know of.

        A server that lost the end of a lease has the message in flight again, and its consumer has let go of it.
        """
        forgotten = self._told_ended & self._ended_and_lost | except_for
        owners = [(payload, owner.token) for payload, owner in self.account.owners.items()]
        return [one for one, token in owners if self._issued_to.get(token) in processes and token not in forgotten]

    # -- waiting

    def look_for_idle(self, queue: str, now: float, now_us: int, slack: float, *, is_idle: bool, is_full: bool) -> None:
        """Somebody waits for messages, or nobody does; whether messages wait beside them."""
        if not is_idle or not (self._has_ready(queue, now_us) or (not is_full and self._has_tick(queue, now_us))):
            self._waits_since.pop(queue, None)
            return
        waited = now - self._waits_since.setdefault(queue, now)
        rules = self.rules[queue]
        # A query may take the wake-up for a delayed message, which it cannot have yet, and does not pass it on.
        limit = _LATE if rules.is_calm and not rules.has_queries else _SLICE + slack
        if waited > limit:
            fail("wake-up", f"a message has waited for {waited:.3f} s beside an idle consumer")

    def _has_ready(self, queue: str, now_us: int) -> bool:
        return not self._keyspace().values.get(self._keys[queue].wakeup.encode()) and self.has_messages(queue, now_us)

    def is_open(self, queue: str) -> bool:
        """Whether a queue or partition has what its first user writes."""
        return b"version" in self._meta(queue)

    def has_messages(self, queue: str, now_us: int) -> bool:
        """Whether a consumer would get a message of this queue or partition."""
        keys, values = self._keys[queue], self._keyspace().values
        if self._tenants_waiting(queue):
            return True
        due = scores(values.get(keys.delayed.encode())).values()
        leases = (score for member, score in scores(values.get(keys.leases.encode())).items() if len(member) == 36)
        return any(one <= now_us for one in (*due, *leases))

    def _has_tick(self, queue: str, now_us: int) -> bool:
        """Whether a tick is due, and nothing keeps consumers from publishing it."""
        ticks = scores(self._keyspace().values.get(self._keys[queue].schedules.encode())).values()
        return not self.rules[queue].is_bounded and any(tick <= now_us for tick in ticks)
