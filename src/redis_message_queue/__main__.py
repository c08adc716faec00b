"""What `python -m redis_message_queue` does."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from redis_message_queue.errors import RedisMessageQueueError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except (RedisMessageQueueError, RedisError) as error:
        print(f"{chosen.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{chosen.command}: stopped; nothing was left running", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone, as `| head` does; Python would complain again when it flushes at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m redis_message_queue", description="A message queue on Redis.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="duplicates, a killed consumer, a poison message, and the balance")
    demo.add_argument("--orders", type=_between(3, 10_000), default=300, metavar="N", help="how many (300)")
    demo.add_argument("--seed", type=int, default=1, metavar="N", help="the same number plays the same story (1)")
    demo.add_argument("--json", action="store_true", help="print the balance as JSON, and nothing else")
    demo.set_defaults(run=_demo)
    return parser


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number


def _demo(chosen: argparse.Namespace) -> int:
    from redis_message_queue.cli.demo.story import tell

    return tell(chosen.orders, chosen.seed, as_json=chosen.json)


if __name__ == "__main__":
    sys.exit(main())
