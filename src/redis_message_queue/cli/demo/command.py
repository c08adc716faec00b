"""rmq demo: the story of the demo, from the command line."""

from typing import Annotated

import typer

from redis_message_queue.cli.frame import CommandLine, Output

app = CommandLine()


@app.command()
def demo(
    output: Output,
    orders: Annotated[int, typer.Option(metavar="N", min=3, max=10_000, help="How many orders are published.")] = 300,
    seed: Annotated[int, typer.Option(metavar="N", help="The same number plays the same story.")] = 1,
) -> int:
    """Play a story on a server of its own: duplicates, a killed consumer, a poison message, and the balance.

    The exit status is 0 if the balance holds, and 1 if it does not.
    """
    from redis_message_queue.cli.demo.story import tell

    return tell(orders, seed, as_json=output.json)
