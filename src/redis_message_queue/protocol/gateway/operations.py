"""Offers the built-in gateway as the seven operations of the contract, for subclasses that override some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.process.interrupt import BaseGracefulInterruptHandler
from redis_message_queue.protocol.calls import never_stop
from redis_message_queue.protocol.consume.claim import Claim, Claimant
from redis_message_queue.protocol.consume.settle import SettleReason, TerminalList
from redis_message_queue.protocol.gateway.custom_gateway import override_context
from redis_message_queue.protocol.port import Argument, Port
from redis_message_queue.protocol.publish.sender import OutgoingMessage, chunk_ids
from redis_message_queue.protocol.store import RedisStore
from redis_message_queue.stored.envelope import TOKEN_BYTES, Envelope, PayloadRules
from redis_message_queue.stored.keys import QueueKeys, refuse_reserved_words, siblings
from redis_message_queue.values.checks import text, whole_number
from redis_message_queue.values.errors import ConfigurationTypeError, GatewayContractError
from redis_message_queue.values.messages import ClaimedMessage
from redis_message_queue.values.plain_values import is_text, plain


class Operations:
    """The seven operations. Each queue name is a whole key; the queue's other keys are derived from it.

    A claimed message is identified by its lease token. On a gateway without leases the consumer knows nothing but the
    payload, so the tokens are kept here.
    """

    def __init__(self, port: Port, options: GatewayOptions) -> None:
        self._port = port
        self._options = options
        self._stores: dict[tuple[str, str], RedisStore] = {}
        self._known: dict[str, QueueKeys] = {}
        self._tokens: dict[tuple[str, str | bytes], list[str]] = {}
        self._lock = port.lock()

    def register(self, keys: QueueKeys) -> None:
        """Note the keys of a queue on this gateway, so that they need not be derived from one of them."""
        for key in (keys.pending, keys.processing, keys.completed, keys.failed, keys.dead_letter):
            self._known[key] = keys

    def _store(self, pending: str, processing: str) -> RedisStore:
        store = self._stores.get((pending, processing))
        if store is None:
            keys = self._known.get(pending)
            if keys is None or keys.processing != processing:
                keys = _keys(pending, processing, self._options.dead_letter_queue)
            # Not a plain assignment: two threads must share one store.
            store = self._stores.setdefault((pending, processing), RedisStore(self._port, keys, self._options))
        return store

    def _siblings(self, key: str) -> QueueKeys:
        return self._known.get(key) or siblings(key)

    def _refuse_reserved_names(self, pending: str) -> None:
        """Raise for the key of a queue that may not have its name."""
        keys = self._siblings(pending)
        refuse_reserved_words(keys.prefix, keys.separator)

    def _store_of_pending(self, pending: str) -> RedisStore:
        return self._store(pending, self._siblings(pending).processing)

    def _store_of_processing(self, processing: str) -> RedisStore:
        return self._store(self._siblings(processing).pending, processing)

    async def publish_message(self, queue: str, message: Any, dedup_key: str | None) -> bool:
        """Add a message unless ``dedup_key`` was published before. Returns False if it was."""
        payload = message if isinstance(message, bytes) else PayloadRules().encode(message)
        queue = _key("queue", queue)
        if dedup_key is not None:
            dedup_key = _key("dedup_key", dedup_key)
        self._refuse_reserved_names(queue)
        ids, context = chunk_ids(self._port.new_id(), 1), override_context()
        outgoing = OutgoingMessage(payload, dedup_key)
        (sender,) = self._store_of_pending(queue).senders
        published = await sender.send(ids, [outgoing], context.stopped)
        context.published = replace(published, ids=ids)
        return published.accepted[0]

    async def add_message(self, queue: str, message: Any) -> None:
        """Add a message to a queue."""
        await self.publish_message(queue, message, None)

    async def wait_for_message_and_move(self, from_queue: str, to_queue: str) -> ClaimedMessage | str | bytes | None:
        """Wait for the next message and claim it. Returns None if there was none."""
        from_queue, to_queue = _key("from_queue", from_queue), _key("to_queue", to_queue)
        self._refuse_reserved_names(from_queue)
        store = self._store(from_queue, to_queue)
        while True:
            claim = await self._recover(store) or await self._claim(store)
            if claim is None:
                return None
            try:
                stored = claim.read(decode=store.decodes)
            except UnicodeDecodeError:
                dead_letters = TerminalList("dead_letters", self._options.max_dead_letter_length)
                await store.settler.settle([claim], dead_letters, SettleReason("undecodable", event="dead"))
                continue
            token = claim.lease_token or ""
            if self._options.message_visibility_timeout_seconds is not None:
                return ClaimedMessage(stored, token)
            with self._lock:
                self._tokens.setdefault((to_queue, stored), []).append(token)
            return stored

    async def _recover(self, store: RedisStore) -> Claim | None:
        """Return a message that an earlier call claimed and whose reply was lost."""
        claimer, claimant = store.claimer, Claimant(store.keys.prefix)
        limit = self._port.now() + self._options.message_wait_interval_seconds + claimer.listening_seconds
        while claimer.unconfirmed:
            recovered = await claimer.recover(claimant, limit=limit)
            if recovered is None:
                return None
            attempt, result = recovered
            if result.claims:
                attempt.apply("settle")  # the caller has it now
            claimer.release(attempt, claimant)
            if result.claims or result.unconfirmed:
                return result.claims[0] if result.claims else None
        return None

    async def _claim(self, store: RedisStore) -> Claim | None:
        claimer, claimant = store.claimer, Claimant(store.keys.prefix, override_context().stopped)
        attempt = claimer.attempt()
        try:
            result = await claimer.claim(attempt, claimant, self._options.message_wait_interval_seconds)
            if result.claims:
                attempt.apply("settle")  # the caller has it now
        finally:
            claimer.release(attempt, claimant)
        return result.claims[0] if result.claims else None

    async def move_message(
        self, from_queue: str, to_queue: str, message: str | bytes, *, lease_token: str | None = None
    ) -> bool:
        """Move a claimed message. Returns False if its lease was lost."""
        from_queue, to_queue = _key("from_queue", from_queue), _key("to_queue", to_queue)
        there = (to_queue, self._siblings(from_queue).records(to_queue))
        return await self._settle(from_queue, message, lease_token, TerminalList("other", None, there))

    async def remove_message(self, queue: str, message: str | bytes, *, lease_token: str | None = None) -> bool:
        """Remove a claimed message. Returns False if its lease was lost."""
        return await self._settle(_key("queue", queue), message, lease_token, None)

    async def _settle(
        self, queue: str, message: str | bytes, lease_token: str | None, terminal_list: TerminalList | None
    ) -> bool:
        if lease_token is not None and not is_text(lease_token):
            raise GatewayContractError(_NO_TOKEN)
        if not (is_text(message) or isinstance(message, bytes)):
            raise ConfigurationTypeError(f"message must be a str or bytes, not {type(message).__name__}")
        token = lease_token or self._take_token(queue, message)
        if token is None:
            return False
        settler, reason = self._store_of_processing(queue).settler, SettleReason("moved")
        try:
            return (await settler.settle([_claim_of(token)], terminal_list, reason)).owned[0]
        except BaseException:
            if not lease_token:
                with self._lock:  # it may still be claimed, and a retry must find it
                    self._tokens.setdefault((queue, message), []).insert(0, token)
            raise

    def _take_token(self, queue: str, message: str | bytes) -> str | None:
        with self._lock:
            tokens = self._tokens.pop((queue, message), [])
            if not tokens:
                return None
            token, *others = tokens
            if others:
                self._tokens[queue, message] = others
            return token

    async def renew_message_lease(
        self,
        queue: str,
        message: str | bytes,
        lease_token: str,
        *,
        is_interrupted: BaseGracefulInterruptHandler | None = None,
    ) -> bool:
        """Renew a lease. Returns False if it was lost. Stop retrying when ``is_interrupted`` says so."""
        if is_interrupted is not None and not isinstance(is_interrupted, BaseGracefulInterruptHandler):
            raise ConfigurationTypeError(
                f"is_interrupted must be a BaseGracefulInterruptHandler or None, not {type(is_interrupted).__name__}"
            )
        settler = self._store_of_processing(_key("queue", queue)).settler
        budget = self._options.message_visibility_timeout_seconds or 0.0
        is_over = never_stop if is_interrupted is None else is_interrupted.is_interrupted
        (renewed,) = await settler.renew([_claim_of(lease_token)], budget, is_over)
        return renewed

    async def trim_queue(self, queue: str, max_length: int) -> None:
        """Delete the oldest entries of a list until ``max_length`` are left."""
        whole_number("max_length", max_length)
        queue, max_length = _key("queue", queue), plain(max_length)
        trim: tuple[Argument, ...] = ("LTRIM", queue, 0, max_length - 1)
        (answer,) = await self._store_of_pending(queue).calls.retry(lambda: self._port.pipeline(queue, (trim,)), "trim")
        if isinstance(answer, Exception):
            raise answer


def _keys(pending: str, processing: str, dead_letter: str | None) -> QueueKeys:
    """Derive the keys of claimed messages from one key, and all others from the other."""
    waiting, claimed = siblings(pending), siblings(processing)
    return replace(
        waiting,
        pending=pending,
        processing=processing,
        leases=claimed.leases,
        deliveries=claimed.deliveries,
        dead_letter=dead_letter or waiting.dead_letter,
    )


def _key(parameter: str, given: str) -> str:
    """Return the name of a key, as a plain str; raise for what cannot be one."""
    text(parameter, given)
    return cast(str, plain(given))


_NO_TOKEN = "lease_token must be one that wait_for_message_and_move has given with its ClaimedMessage"


def _claim_of(token: str) -> Claim:
    """Return the claim that a lease token belongs to."""
    id, _, nonce = token.partition(":") if is_text(token) else ("", "", "")
    try:
        claim = Claim(Envelope(b"\x80" + bytes.fromhex(id)), 0.0, bytes.fromhex(nonce))
        if len(claim.token) != TOKEN_BYTES:
            raise ValueError(token)
        return claim
    except ValueError:
        raise GatewayContractError(_NO_TOKEN) from None
