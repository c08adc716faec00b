"""Mutants: small bugs that somebody could write on a bad day, each with the test files that are likely to notice it.

The module still imports with any of them, and a message that is published is still delivered: each shows only where a
test looks. The simulator has planted bugs of its own (`simulator/mutants.py`); these are others.
"""

from dataclasses import dataclass

SRC = "src/redis_message_queue"
LUA = f"{SRC}/lua"


@dataclass(frozen=True)
class Mutant:
    """A bug: a text of one file that is replaced."""

    name: str
    file: str
    old: str
    new: str
    likely: tuple[str, ...]  # test files

    def applied_to(self, text: str) -> str:
        """Return the text of the file with the bug."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has this text {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


MUTANTS = (
    # -- protocol
    Mutant(
        "a drain from inside an operation says that nothing is under way",
        f"{SRC}/protocol/drain.py",
        "return not (claimer.unconfirmed or gate.others_are_under_way() or gate.we_are_under_way())",
        "return not (claimer.unconfirmed or gate.others_are_under_way())",
        ("tests/contract/test_drain.py", "tests/protocol/test_drain.py"),
    ),
    Mutant(
        "a lease that ran out by the own clock does not count as lost",
        f"{SRC}/protocol/consume/lease.py",
        "return claim in self._refused or (claim in self._started and self.left(claim) <= 0)",
        "return claim in self._refused",
        ("tests/protocol/test_heartbeat.py", "tests/contract/test_run_leases.py", "tests/contract/test_lease.py"),
    ),
    Mutant(
        "a renewed lease is counted from the reply, not from the request",
        f"{SRC}/protocol/consume/lease.py",
        "lease.renewed(renewed, sent_at)",
        "lease.renewed(renewed, lease.port.now())",
        ("tests/protocol/test_heartbeat.py", "tests/contract/test_heartbeat.py"),
    ),
    # -- envelope
    Mutant(
        "the headers of a message with a tenant are looked for in the wrong place",
        f"{SRC}/stored/envelope.py",
        "start = HEADER_BYTES + (1 + self.stored[HEADER_BYTES] if self.stored[0] & HAS_TENANT else 0)",
        "start = HEADER_BYTES",
        ("tests/contract/test_headers.py",),
    ),
    Mutant(
        "a stored message with an empty payload is taken for foreign bytes",
        f"{SRC}/stored/envelope.py",
        "    return at <= len(stored)\n",
        "    return at < len(stored)\n",
        ("tests/pipeline/test_rows.py",),
    ),
    Mutant(
        "a payload of exactly the allowed size is refused",
        f"{SRC}/stored/envelope.py",
        "if self.max_bytes is not None and len(payload) > self.max_bytes:",
        "if self.max_bytes is not None and len(payload) >= self.max_bytes:",
        ("tests/protocol/test_payload_encoding.py", "tests/contract/test_payload.py"),
    ),
    # -- keys
    Mutant(
        "the tenant and the deduplication key run into each other",
        f"{SRC}/stored/keys.py",
        'f"{len(tenant)}:{tenant}:{key}"',
        'f"{tenant}:{key}"',
        ("tests/contract/test_deduplication.py", "tests/contract/test_tenants.py"),
    ),
    Mutant(
        "all partitions of a queue on a cluster share a slot",
        f"{SRC}/stored/keys.py",
        "is_tag = len(prefix) > 2 and hash_tag_of(prefix) == prefix[1:-1]",
        "is_tag = False",
        ("tests/topologies/test_partitions.py",),
    ),
    Mutant(
        "an empty pair of braces counts as a hash tag",
        f"{SRC}/stored/keys.py",
        "return key[start + 1 : end] if start >= 0 and start + 1 < end else None",
        "return key[start + 1 : end] if start >= 0 and start < end else None",
        ("tests/contract/test_keys.py", "tests/topologies/test_cluster_keys.py"),
    ),
    # -- settle
    Mutant(
        "the chunks of a large batch are requeued in the wrong order",
        f"{SRC}/protocol/consume/settle.py",
        "for some in reversed(list(_chunks(claims))):",
        "for some in _chunks(claims):",
        ("tests/protocol/test_batches.py", "tests/contract/test_batch_settling.py"),
    ),
    Mutant(
        "an ack of a message that was lost counts as done",
        f"{SRC}/protocol/consume/settle.py",
        'return SETTLED if reply == b"1" else _read(reply, 1)',
        "return SETTLED",
        ("tests/contract/test_lease.py", "tests/contract/test_events.py"),
    ),
    Mutant(
        "a retry policy allows one attempt too many",
        f"{SRC}/protocol/consume/delivery.py",
        "if policy is not None and policy.tries_again(error, claim.failures + 1):",
        "if policy is not None and policy.tries_again(error, claim.failures):",
        ("tests/contract/test_retry_policy.py", "tests/contract/test_retry.py"),
    ),
    # -- sync
    Mutant(
        "the error that ended a thread of a loop is swallowed",
        f"{SRC}/sync/handlers.py",
        "                errors.append(error)\n",
        "",
        ("tests/contract/test_run_failures.py", "tests/contract/test_run.py"),
    ),
    Mutant(
        "a connection goes back to its pool before its reply was read",
        f"{SRC}/sync/redis_port.py",
        "            if not answered:\n                connection.disconnect()\n            pool.release(connection)",
        "            pool.release(connection)",
        ("tests/faults/test_hand_packed_path.py", "tests/faults/test_ctrl_c.py"),
    ),
    Mutant(
        "a message whose handler turns out to be async is failed instead of left alone",
        f"{SRC}/sync/message_queue.py",
        "                context.leave_alone()\n",
        "",
        ("tests/contract/test_callback.py",),
    ),
    # -- asyncio
    Mutant(
        "submit_many loses the headers",
        f"{SRC}/protocol/publish/publish_methods.py",
        """(tenant, delay_seconds, at, headers, None, ttl_seconds, partition_key, repeat_of)
        overrides = PublishOverrides(*details, timeout_seconds, self._protocol.port.now())
        return await self._protocol.publisher.submit_many(messages, overrides)
""",
        """(tenant, delay_seconds, at, None, None, ttl_seconds, partition_key, repeat_of)
        overrides = PublishOverrides(*details, timeout_seconds, self._protocol.port.now())
        return await self._protocol.publisher.submit_many(messages, overrides)
""",
        ("tests/contract/test_receipts.py",),
    ),
    Mutant(
        "a loop that is cancelled does not cancel its tasks",
        f"{SRC}/asyncio/handlers.py",
        """        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
""",
        """        except asyncio.CancelledError:
            raise
""",
        ("tests/contract/test_run_stopping.py", "tests/faults/test_stopped_loops.py"),
    ),
    Mutant(
        "a handler that returns a future is not awaited before its message is acknowledged",
        f"{SRC}/asyncio/message_queue.py",
        "if inspect.isawaitable(result):",
        "if inspect.iscoroutine(result):",
        ("tests/contract/test_callback.py",),
    ),
    # -- spark/source
    Mutant(
        "a query without a checkpoint skips what a dead query had sealed",
        f"{SRC}/spark/source.py",
        "return offset_of(self._acquired([0]).acked)",
        "return offset_of(self._acquired([0]).sealed)",
        ("tests/pipeline/test_source.py", "tests/spark/test_source.py"),
    ),
    Mutant(
        "a slice with too few messages is no data loss",
        f"{SRC}/spark/source.py",
        "if found != partition.stop - partition.start:",
        "if found > partition.stop - partition.start:",
        ("tests/pipeline/test_source.py", "tests/spark/test_source.py"),
    ),
    Mutant(
        "AvailableNow also reads what is published later",
        f"{SRC}/spark/source.py",
        "self._left = self._group.depths()",
        "self._left = None",
        ("tests/pipeline/test_source.py", "tests/spark/test_source.py"),
    ),
    # -- spark/sink
    Mutant(
        "equal rows of one task count as duplicates",
        f"{SRC}/spark/sink.py",
        'return f"spark:{self.scope}:{digest.hex()}:{self._seen[digest]}"',
        'return f"spark:{self.scope}:{digest.hex()}"',
        ("tests/pipeline/test_sink.py", "tests/spark/test_sink.py"),
    ),
    Mutant(
        "equal rows of two tasks count as duplicates",
        f"{SRC}/spark/sink.py",
        'return f"{query}:{epoch}:{context.partitionId()}"',
        'return f"{query}:{epoch}"',
        ("tests/pipeline/test_sink.py", "tests/spark/test_sink.py"),
    ),
    Mutant(
        "the sink suppresses a key that another tenant has used",
        f"{SRC}/spark/sink.py",
        "store.keys.deduplication(keys[place], tenant)",
        "store.keys.deduplication(keys[place])",
        ("tests/pipeline/test_sink.py", "tests/spark/test_sink.py"),
    ),
    # -- cli
    Mutant(
        "rmq consume succeeds although a command failed",
        f"{SRC}/cli/consume.py",
        "return ExitStatus.FAILED if failed or nothing_came else ExitStatus.OK",
        "return ExitStatus.FAILED if nothing_came else ExitStatus.OK",
        ("tests/cli/test_consume.py",),
    ),
    Mutant(
        "rmq consume reports a command that a signal ended with a wrong status",
        f"{SRC}/cli/consume.py",
        "return process.returncode if process.returncode >= 0 else 128 - process.returncode",
        "return process.returncode if process.returncode >= 0 else 128 + process.returncode",
        ("tests/cli/test_consume.py",),
    ),
    Mutant(
        "rmq publish takes a time without a zone for local time",
        f"{SRC}/cli/publish.py",
        "return time.replace(tzinfo=UTC) if time.tzinfo is None else time",
        "return time.astimezone(UTC) if time.tzinfo is None else time",
        ("tests/cli/test_manners.py",),
    ),
    # -- dashboard
    Mutant(
        "a session of the dashboard never ends",
        f"{SRC}/dashboard/access.py",
        "and _end_of(cookie) > time.time() and cookie not in self._closed",
        "and cookie not in self._closed",
        ("tests/dashboard/test_access.py",),
    ),
    Mutant(
        "a form of another site is taken for one of the dashboard",
        f"{SRC}/dashboard/access.py",
        '            and origin.netloc == request.headers.get("host", "")\n',
        "",
        ("tests/dashboard/test_access.py",),
    ),
    Mutant(
        "a search that stopped early says that it has seen all",
        f"{SRC}/dashboard/search.py",
        "is_all = len(seen) < depth",
        "is_all = len(seen) <= depth",
        ("tests/dashboard/test_pages.py", "tests/dashboard/test_cost.py"),
    ),
    # -- Lua
    Mutant(
        "the extras of a message with a tenant are read from the wrong place",
        f"{LUA}/lib/envelope.lua",
        "  if flags % 2 == 1 then at = at + 1 + string.byte(stored, at) end\n",
        "",
        ("tests/contract/test_headers.py", "tests/contract/test_redrive.py", "tests/lua/test_records.py"),
    ),
    Mutant(
        "a terminal list has one message more than its limit",
        f"{LUA}/lib/record.lua",
        "redis.pcall('LTRIM', list, 0, max_length - 1)",
        "redis.pcall('LTRIM', list, 0, max_length)",
        ("tests/lua/test_records.py", "tests/contract/test_tracking.py", "tests/contract/test_dead_letters.py"),
    ),
    Mutant(
        "a batch is acknowledged although a message of it was lost",
        f"{LUA}/settle.lua",
        "owns_all = owns_all and deadline end",
        "owns_all = owns_all or deadline end",
        ("tests/lua/test_fencing.py", "tests/contract/test_batch_leases.py"),
    ),
    Mutant(
        "requeued messages change their order",
        f"{LUA}/requeue.lua",
        "table.insert(bodies[tenant], 1, with_entry(stored))",
        "table.insert(bodies[tenant], with_entry(stored))",
        ("tests/lua/test_order.py", "tests/contract/test_batch_settling.py"),
    ),
    Mutant(
        "a delivery that no handler has seen counts",
        f"{LUA}/requeue.lua",
        "write_entry(attempts - uncounted, times - uncounted, failures)",
        "write_entry(attempts - uncounted, times, failures)",
        ("tests/lua/test_order.py", "tests/contract/test_run_stopping.py", "tests/contract/test_drain.py"),
    ),
    Mutant(
        "a failure also uses up a delivery that is meant for crashes",
        f"{LUA}/retry_later.lua",
        "write_entry(attempts, times - 1, failures + 1)",
        "write_entry(attempts, times, failures + 1)",
        ("tests/contract/test_retry_policy.py", "tests/contract/test_retry.py"),
    ),
    Mutant(
        "messages without a tenant count as those of a tenant",
        f"{LUA}/stats.lua",
        "redis.call('ZCARD', tenant_ring) - (redis.call('ZSCORE', tenant_ring, '') and 1 or 0)",
        "redis.call('ZCARD', tenant_ring)",
        ("tests/contract/test_tenants.py",),
    ),
    Mutant(
        "a cancelled message leaves its delivery count behind",
        f"{LUA}/cancel.lua",
        "  redis.call('HDEL', deliveries, id)\n",
        "",
        ("tests/contract/test_cancel.py", "tests/lua/test_operators.py"),
    ),
    Mutant(
        "a late repetition seals what a query has filled since",
        f"{LUA}/seal_batch.lua",
        "if part < last_part then return sealed end\n",
        "",
        ("tests/lua/test_groups.py",),
    ),
    Mutant(
        "a batch forgets in how many slices it was sealed",
        f"{LUA}/seal_batch.lua",
        "batch.slices = slices\n",
        "",
        ("tests/lua/test_groups.py", "tests/pipeline/test_source.py"),
    ),
    Mutant(
        "a rejected message moves the edges of the slices",
        f"{SRC}/spark/consumer_group.py",
        "return self.messages + self.empty",
        "return self.messages",
        ("tests/pipeline/test_source.py",),
    ),
    Mutant(
        "a hand-off that was refused can still be done by a late repetition",
        f"{LUA}/hand_off.lua",
        "if not plan then return remember('-' .. nth) end",
        "if not plan then return '-' .. nth end",
        ("tests/lua/test_repetition.py", "tests/contract/test_hand_off_faults.py"),
    ),
)
