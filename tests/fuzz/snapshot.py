"""Everything that a server holds, to compare and to restore."""

from __future__ import annotations

from typing import Any

Snapshot = dict[bytes, bytes]


def take(client: Any) -> Snapshot:
    """Return every key with its serialized value."""
    keys: Any = sorted(client.keys("*"))
    pipeline = client.pipeline(transaction=True)
    for key in keys:
        pipeline.dump(key)
    return {key: value for key, value in zip(keys, pipeline.execute(), strict=True) if value is not None}


def restore(client: Any, snapshot: Snapshot) -> None:
    """Make the server hold this and nothing else."""
    pipeline = client.pipeline(transaction=True)
    pipeline.flushall()
    for key, value in snapshot.items():
        pipeline.restore(key, 0, value)
    pipeline.execute()
