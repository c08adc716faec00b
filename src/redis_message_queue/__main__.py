"""The entry point of `rmq` and `python -m redis_message_queue`."""

import sys
from collections.abc import Sequence

_PARTS = {"typer", "rich", "shellingham"}  # of the extra


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        from redis_message_queue.cli.program import run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PARTS:
            raise
        print("rmq: the command line is an extra: pip install 'redis-exact-queue[cli]'", file=sys.stderr)
        return 2
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
