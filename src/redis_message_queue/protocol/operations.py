"""The built-in gateway seen through the seven operations of the contract, for those who override some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from redis_message_queue.checks import whole_number
from redis_message_queue.envelope import TOKEN_BYTES, Envelope, PayloadRules
from redis_message_queue.errors import GatewayContractError
from redis_message_queue.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.keys import QueueKeys, refuse_reserved_words, siblings
from redis_message_queue.messages import ClaimedMessage
from redis_message_queue.options import GatewayOptions
from redis_message_queue.protocol.calls import Calls
from redis_message_queue.protocol.claim import Claim, Found
from redis_message_queue.protocol.errand import errand
from redis_message_queue.protocol.intake import log_dead
from redis_message_queue.protocol.port import Argument, Port
from redis_message_queue.protocol.publish import chunk_ids
from redis_message_queue.protocol.settle import Keep, Note
from redis_message_queue.protocol.store import RedisStore


def _never() -> bool:
    return False


async def _unheard(error: Exception, tries: int) -> None:
    return


async def _log(found: Found) -> None:
    log_dead(found)


class Operations:
    """Each name of a queue here is a whole key; the other keys of its queue are its siblings.

    A message that is held is named by its lease token, also on a gateway without leases: there it is remembered
    here, because its holder knows nothing but the payload.
    """

    def __init__(self, port: Port, options: GatewayOptions) -> None:
        self._port = port
        self._options = options
        self._stores: dict[tuple[str, str], RedisStore] = {}
        self._known: dict[str, QueueKeys] = {}
        self._held: dict[tuple[str, str | bytes], list[str]] = {}
        self._lock = port.lock()

    def know(self, keys: QueueKeys) -> None:
        """The keys of a queue on this gateway need not be guessed from one of them."""
        for key in (keys.pending, keys.processing, keys.completed, keys.failed, keys.dead_letter):
            self._known[key] = keys

    def _store(self, pending: str, processing: str) -> RedisStore:
        store = self._stores.get((pending, processing))
        if store is None:
            keys = self._known.get(pending)
            if keys is None or keys.processing != processing:
                keys = _keys(pending, processing, self._options.dead_letter_queue)
            # Not a plain assignment: two threads must not go on with two stores.
            store = self._stores.setdefault((pending, processing), RedisStore(self._port, keys, self._options))
        return store

    def _siblings(self, key: str) -> QueueKeys:
        return self._known.get(key) or siblings(key)

    def _refuse_keys_of_others(self, pending: str) -> None:
        """A line whose queue has a name that no queue may have."""
        keys = self._siblings(pending)
        refuse_reserved_words(keys.prefix, keys.separator)

    def _store_of_line(self, pending: str) -> RedisStore:
        return self._store(pending, self._siblings(pending).processing)

    def _calls_of_line(self, pending: str) -> Calls:
        calls = self._store_of_line(pending).calls
        assert calls is not None
        return calls

    def _store_of_held(self, processing: str) -> RedisStore:
        return self._store(self._siblings(processing).pending, processing)

    async def publish_message(self, queue: str, message: Any, dedup_key: str | None) -> bool:
        payload = message if isinstance(message, bytes) else PayloadRules().encode(message)
        self._refuse_keys_of_others(queue)
        publisher = self._store_of_line(queue).publisher
        (message_id,), sent = chunk_ids(self._port.fresh_id(), 1), errand()
        published = await publisher.publish_one(message_id, payload, dedup_key, sent.stopped)
        sent.published = replace(published, message_id=message_id)
        return published.accepted[0]

    async def add_message(self, queue: str, message: Any) -> None:
        await self.publish_message(queue, message, None)

    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | str | bytes | None:
        self._refuse_keys_of_others(from_queue)
        store = self._store(from_queue, to_queue)
        while True:
            claim = await self._recover(store) or await self._claim(store)
            if claim is None:
                return None
            try:
                stored = claim.read(decode=store.decodes)
            except UnicodeDecodeError:
                limit = self._options.max_dead_letter_length
                dead_letters = Keep(store.keys.dead_letter, store.keys.records("dlq"), limit)
                await store.settler.settle([claim], dead_letters, Note("undecodable", event="dead"))
                continue
            return self._handed(to_queue, stored, claim.lease_token or "")

    def _handed(self, queue: str, stored: str | bytes, token: str) -> ClaimedMessage | str | bytes:
        if self._options.message_visibility_timeout_seconds is not None:
            return ClaimedMessage(stored, token)
        with self._lock:
            self._held.setdefault((queue, stored), []).append(token)
        return stored

    async def _recover(self, store: RedisStore) -> Claim | None:
        """A message that an earlier call took and nobody saw."""
        limit = store.claimer.limit(self._port.now() + self._options.message_wait_interval_seconds)
        while store.claimer.unsure:
            recovered = await store.claimer.recover(self, _never, _unheard, limit=limit)
            if recovered is None:
                return None
            attempt, found = recovered
            log_dead(found)
            attempt.unsure = found.in_doubt
            store.claimer.release(attempt)
            if found.claims:
                return found.claims[0]
            if found.in_doubt:
                return None
        return None

    async def _claim(self, store: RedisStore) -> Claim | None:
        attempt = store.claimer.attempt()
        try:
            found = await store.claimer.claim(
                attempt, self._options.message_wait_interval_seconds, errand().stopped, _unheard, news=_log
            )
            if found.claims:
                attempt.unsure = False
        finally:
            store.claimer.release(attempt)
        return found.claims[0] if found.claims else None

    async def move_message(self, from_queue: str, to_queue: str, message: str | bytes, lease_token: str | None) -> bool:
        records = self._siblings(from_queue).records(to_queue)
        return await self._settle(from_queue, message, lease_token, Keep(to_queue, records, None))

    async def remove_message(self, queue: str, message: str | bytes, lease_token: str | None) -> bool:
        return await self._settle(queue, message, lease_token, None)

    async def _settle(self, queue: str, message: str | bytes, lease_token: str | None, keep: Keep | None) -> bool:
        if lease_token:
            claim = _claim_of(lease_token)
            return (await self._store_of_held(queue).settler.settle([claim], keep, Note("moved"))).held[0]
        token = self._remembered(queue, message)
        if token is None:
            return False
        try:
            return (await self._store_of_held(queue).settler.settle([_claim_of(token)], keep, Note("moved"))).held[0]
        except BaseException:
            with self._lock:  # it may be held still, and whoever retries must find it
                self._held.setdefault((queue, message), []).insert(0, token)
            raise

    def _remembered(self, queue: str, message: str | bytes) -> str | None:
        with self._lock:
            tokens = self._held.pop((queue, message), [])
            if not tokens:
                return None
            token, *others = tokens
            if others:
                self._held[queue, message] = others
            return token

    async def renew_message_lease(
        self, queue: str, lease_token: str, interrupt: BaseGracefulInterruptHandler | None
    ) -> bool:
        settler = self._store_of_held(queue).settler
        budget = self._options.message_visibility_timeout_seconds or 0.0
        is_over = interrupt.is_interrupted if interrupt else _never
        (renewed,) = await settler.renew([_claim_of(lease_token)], budget, is_over)
        return renewed

    async def trim_queue(self, queue: str, max_length: int) -> None:
        whole_number("max_length", max_length)
        trim: tuple[Argument, ...] = ("LTRIM", queue, 0, max_length - 1)
        (answer,) = await self._calls_of_line(queue).retry(lambda: self._port.converse(queue, (trim,)), "trim")
        if isinstance(answer, Exception):
            raise answer


def _keys(pending: str, processing: str, dead_letter: str | None) -> QueueKeys:
    """The line's own siblings, and beside what is held those of that."""
    line, held = siblings(pending), siblings(processing)
    return replace(
        line,
        pending=pending,
        processing=processing,
        leases=held.leases,
        deliveries=held.deliveries,
        dead_letter=dead_letter or line.dead_letter,
    )


def _claim_of(token: str) -> Claim:
    """The claim that a lease token speaks of."""
    id, _, nonce = token.partition(":") if isinstance(token, str) else ("", "", "")
    try:
        claim = Claim(Envelope(b"\x80" + bytes.fromhex(id)), 0.0, bytes.fromhex(nonce))
        if len(claim.token) != TOKEN_BYTES:
            raise ValueError(token)
        return claim
    except ValueError:
        raise GatewayContractError(
            "lease_token must be one that wait_for_message_and_move has given with its ClaimedMessage"
        ) from None
