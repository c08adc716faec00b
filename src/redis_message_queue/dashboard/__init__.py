"""A dashboard for people on call: which queue is stuck, and why. It needs the extra `dashboard`."""

from redis_message_queue.values.errors import MissingExtraError

try:
    from redis_message_queue.dashboard.app import Dashboard
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in {"starlette", "jinja2", "anyio"}:
        raise
    raise MissingExtraError(
        f"redis_message_queue.dashboard needs {missing.name}; run: pip install 'redis-exact-queue[dashboard]'"
    ) from missing

__all__ = ["Dashboard"]
