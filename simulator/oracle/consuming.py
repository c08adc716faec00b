"""What consumers do: claim, renew, settle, requeue, retry and hand off."""

from __future__ import annotations

import json
import math

from redis_message_queue.protocol.consume.claim import Claim, ClaimResult, read_reply
from simulator.lua import as_bytes
from simulator.oracle.account import NOBODY, Owner
from simulator.oracle.book import Moved
from simulator.oracle.invariants import fail
from simulator.oracle.places import GONE, PROCESSING
from simulator.oracle.sequence import Sequence
from simulator.oracle.steps import named_arguments, payload_of_body, queue_of, tenant_of
from simulator.oracle.ticks import name_of
from simulator.oracle.turns import Turns
from simulator.server import Step

_RULES_OF_TARGET = 9  # arguments of each target of a hand-off; the last one is the number of its messages


class Consuming(Turns, Sequence):
    """Knows who has which message."""

    def _after_claim(self, step: Step, moved: Moved) -> None:
        given = named_arguments(step)
        nonce = given["holder"] + int(given["call"]).to_bytes(5, "big")
        self._check_claims(step, read_reply(step.reply, 0.0, nonce), moved)

    def _after_take(self, step: Step, moved: Moved) -> None:
        if isinstance(step.reply, bytes):
            self._check_claims(step, read_reply(step.reply, 0.0, named_arguments(step)["nonce"]), moved)
        else:
            self._check_untouched(step, moved)

    def _check_untouched(self, step: Step, moved: Moved) -> None:
        """A script that says that this is not its case has changed nothing."""
        if moved or step.changed:
            fail("one place", f"{step.name} left the call to another script, and has changed something")

    def _check_claims(self, step: Step, result: ClaimResult, moved: Moved) -> None:
        queue = queue_of(step)
        rules, account = self.rules[queue], self.account
        fresh: list[bytes] = []
        for place, claim in enumerate(result.claims, 1):
            payload, token = name_of(claim.envelope.stored), claim.token
            name, owner = payload.decode(), account.owners.get(payload)
            if self._place(payload) != PROCESSING:
                fail("one place", f"a claim returned {name}, which is {self._place(payload)}")
            if owner is None or owner.token != token:
                if owner is not None and owner.until_us > step.now_us:
                    fail("lease", f"{name} was claimed while another had {owner.until_us - step.now_us} us left")
                account.deliveries[payload] += 1
                account.attempts[payload] += 1
                self._check_counts(payload, claim)
                if rules.max_deliveries and account.deliveries[payload] > rules.max_deliveries:
                    fail("delivery limit", f"{name} was delivered {account.deliveries[payload]} times")
                if self._is_too_old(payload, step.now_us, rules):
                    fail("delivery limit", f"{name} was delivered after its time to live")
                self._check_paused(step, payload)
                self._check_sequence(payload)
                fresh.append(payload)
            self._issued_to[token] = step.caller
            until = step.now_us + rules.lease_us + place if rules.lease_us else math.inf
            account.owners[payload] = Owner(token, until)
        for payload, (_, after) in moved.items():
            if after == PROCESSING and payload not in account.owners:
                fail("accounted for", f"a claim took {payload.decode()} and did not return it")
        for tenant in sorted({tenant_of(payload) for payload in fresh}) if rules.most_in_flight else ():
            if tenant and (found := self._in_flight(queue, tenant)) > rules.most_in_flight:
                fail("in flight", f"tenant {tenant!r} has {found} messages in flight, and its limit is lower")
        self._delivered = fresh
        self._take_turns(queue, fresh, moved)

    def _after_renew(self, step: Step, moved: Moved) -> None:
        given = named_arguments(step)
        self._check_holders(step, given["tokens"], step.reply, given["lease_us"])

    def _after_settle(self, step: Step, moved: Moved) -> None:
        given = named_arguments(step)
        tokens = given["tokens"]
        self._check_holders(step, tokens, step.reply[: len(tokens) // 36], 0)
        self._check_fence(step, tokens, moved)
        # An ack for a journal says how long the handler ran.
        if not given["note"] or ("handled" in (note := json.loads(given["note"])) and "event" not in note):
            self._check_handled(step, moved)

    def _after_ack_one(self, step: Step, moved: Moved) -> None:
        if not step.reply:
            self._check_untouched(step, moved)
        token = named_arguments(step)["token"]
        self._check_holders(step, token, step.reply, 0)
        self._check_fence(step, token, moved)
        self._check_handled(step, moved)

    def _after_ack_and_take(self, step: Step, moved: Moved) -> None:
        if isinstance(step.reply, bytes) and GONE not in {after for _, after in moved.values()}:
            fail("accounted for", "ack_and_take acknowledged nothing")
        self._check_fence(step, named_arguments(step)["token"], moved)
        self._check_handled(step, moved)
        self._after_take(step, moved)

    def _check_handled(self, step: Step, moved: Moved) -> None:
        for payload, (before, _) in moved.items():
            if before == PROCESSING and (step.caller, payload) not in self._returned:
                fail("handled", f"{step.caller} acknowledged {payload.decode()}, and its handler has not returned")

    def _after_requeue(self, step: Step, moved: Moved) -> None:
        given = named_arguments(step)
        self._check_holders(step, given["tokens"], step.reply, 0)
        self._check_fence(step, given["tokens"], moved)
        for payload, (before, _) in moved.items():
            if before == PROCESSING and given["forgiven"]:
                self.account.deliveries[payload] -= 1
                self.account.attempts[payload] -= 1
        self._check_front(step, given["tokens"], moved)

    def _check_front(self, step: Step, tokens: bytes, moved: Moved) -> None:
        """Whether they are at the right ends of their lists, the first of them outermost."""
        ids = {self.account.stored[payload][1:17]: payload for payload in moved}
        back: dict[str, list[bytes]] = {}
        for place, mark in enumerate(step.reply):  # its caller may also name a claim of the same message that is past
            payload = ids.get(tokens[36 * place : 36 * place + 16])
            if payload and mark == ord("1"):
                back.setdefault(tenant_of(payload), []).append(payload)
        keys = self._keys[queue_of(step)]
        for tenant, payloads in back.items():
            key = keys.tenant_pending(tenant) if tenant else keys.pending
            elements = self._keyspace().values.get(key.encode())
            front = [name_of(one) for one in reversed(list(elements or ())[-len(payloads) :])]  # type: ignore[arg-type]
            if front != payloads:
                fail("order", f"{step.name} did not put {payloads[0].decode()} to the front of its queue")

    def _after_retry_later(self, step: Step, moved: Moved) -> None:
        tokens = named_arguments(step)["tokens"]
        self._check_holders(step, tokens, step.reply, 0)
        self._check_fence(step, tokens, moved)
        for payload in moved:
            self._count_failure(payload)
        # An answer from the reply cache changes nothing.
        if not moved and self._keys[queue_of(step)].deliveries.encode() in step.changed:
            self._keep_place(step, tokens)

    def _keep_place(self, step: Step, token: bytes) -> None:
        """The message stays in flight until its next attempt, and nobody has it."""
        account, payload = self.account, self._payload_of(token[:16])
        owner = None if payload is None else account.owners.get(payload)
        if payload is None or owner is None or owner.token != token:
            fail("fencing", f"{step.name} delayed a message for a consumer that had lost it")
        self._count_failure(payload)
        account.owners[payload] = Owner(NOBODY, step.now_us + int(named_arguments(step)["delay_us"]))

    def _count_failure(self, payload: bytes) -> None:
        """A failure does not use up the deliveries that are meant for crashes."""
        self.account.deliveries[payload] -= 1
        self.account.failures[payload] += 1

    def _check_counts(self, payload: bytes, claim: Claim) -> None:
        """Whether a consumer is told how often the message was delivered, and how often it failed."""
        account = self.account
        told = (claim.attempt, claim.delivery_count, claim.failures)
        counted = (account.attempts[payload], account.deliveries[payload], account.failures[payload])
        if told != counted:
            fail("delivery limit", f"{payload.decode()} was delivered with the counts {told} instead of {counted}")

    def _after_hand_off(self, step: Step, moved: Moved) -> None:
        given = named_arguments(step)
        self._check_fence(step, given["tokens"], moved)
        marks, results = as_bytes(step.reply), step.arguments[len(given) :]
        if marks[:1] != b"1":
            return  # refused: not the caller's message, or a full target
        while results:
            count = int(results[_RULES_OF_TARGET - 1])
            bodies = results[_RULES_OF_TARGET + 2 : _RULES_OF_TARGET + 3 * count : 3]
            for body, mark in zip(bodies, marks[1 : 1 + count], strict=True):
                if mark == ord("0"):
                    self._call_duplicate(step, payload_of_body(as_bytes(body)))
            marks, results = marks[count:], results[_RULES_OF_TARGET + 3 * count :]

    def _check_holders(self, step: Step, tokens: bytes, marks: bytes, lease_us: int) -> None:
        """Whoever was told that it held a message did, and whoever holds one was not refused."""
        owners = {one.token: one for one in self.account.owners.values()}
        for place, mark in enumerate(marks, 1):
            owner = owners.get(tokens[36 * place - 36 : 36 * place])
            if mark == ord("0") and owner is not None:
                fail("fencing", f"{step.name} refused the holder of a message")
            if lease_us and mark == ord("1"):
                if owner is None:
                    fail("fencing", "a lease was renewed by a consumer that had lost it")
                owner.until_us = step.now_us + lease_us + place

    def _check_fence(self, step: Step, tokens: bytes, moved: Moved) -> None:
        given = {tokens[at : at + 36] for at in range(0, len(tokens), 36)}
        for payload, (before, _) in moved.items():
            owner = self.account.owners.get(payload)
            if before == PROCESSING and (owner is None or owner.token not in given):
                fail("fencing", f"{step.name} moved {payload.decode()} for a consumer that had lost it")
