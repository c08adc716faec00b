"""Draws the diagrams of the documentation as SVG files that stand alone, on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#667}.name{font-weight:600;font-size:14px}.note{font-size:11.5px}"
    ".box{fill:#2874c81c;stroke:#2874c8;stroke-width:1.4}.end{fill:#8882;stroke:#889;stroke-width:1.4}"
    ".bad{fill:#d3333318;stroke:#d33;stroke-width:1.4}.way{fill:none;stroke:#778;stroke-width:1.4}"
    ".lost{stroke:#d33;stroke-dasharray:5 4}.life{stroke:#8886;stroke-width:1.2;stroke-dasharray:3 4}"
    ".held{fill:#3a9a5b44;stroke:#3a9a5b}.axis{stroke:#8886;stroke-width:1.2}"
)
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="#778"/></marker></defs>'
)
Point = tuple[float, float]


def _svg(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    about = f"<title>{escape(title)}</title><style>{_STYLE}</style>{_ARROW}"
    return "\n".join([head, about, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, name: str, note: str = "", style: str = "box") -> str:
    middle = x + width / 2
    rect = f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    if not note:
        return rect + _text(middle, y + height / 2 + 5, name, "name")
    return rect + _text(middle, y + height / 2 - 2, name, "name") + _text(middle, y + height / 2 + 15, note, "note")


def _way(points: Sequence[Point], style: str = "") -> str:
    drawn = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="way {style}" marker-end="url(#arrow)" points="{drawn}"/>'


def message_states() -> str:
    """Where a message can be, and what moves it."""
    return _svg(
        "The states of a message",
        920,
        400,
        [
            _box(210, 30, 150, 54, "delayed", "ZSET, until it is due"),
            _box(210, 170, 150, 54, "pending", "LIST, or tenant queue"),
            _box(480, 170, 160, 54, "in flight", "HASH, with a lease"),
            _box(760, 70, 140, 48, "gone", style="end"),
            _box(760, 140, 140, 48, "completed", style="end"),
            _box(760, 210, 140, 48, "failed", style="bad"),
            _box(480, 320, 160, 54, "dead letters", "LIST, kept", style="bad"),
            _way([(20, 197), (208, 197)]),
            _text(112, 189, "publish"),
            _way([(60, 197), (60, 57), (208, 57)]),
            _text(132, 49, "with a delay"),
            _way([(285, 84), (285, 168)]),
            _text(292, 130, "due", anchor="start"),
            _way([(360, 190), (478, 190)]),
            _text(419, 182, "claim"),
            _way([(478, 210), (362, 210)]),
            _text(419, 228, "requeue, or"),
            _text(419, 244, "lease expired"),
            _way([(560, 168), (560, 57), (362, 57)]),
            _text(462, 49, "raised: retry later"),
            _way([(640, 182), (700, 182), (700, 94), (758, 94)]),
            _way([(700, 164), (758, 164)]),
            _text(668, 174, "ack"),
            _way([(640, 210), (700, 210), (700, 234), (758, 234)]),
            _text(672, 228, "raised"),
            _way([(560, 224), (560, 318)]),
            _text(568, 262, "delivered too often, too old,", anchor="start"),
            _text(568, 278, "or raised in run() without a failed list", anchor="start"),
            _way([(480, 347), (285, 347), (285, 226)]),
            _text(375, 339, "redrive"),
            _way([(830, 258), (830, 390), (250, 390), (250, 226)]),
            _text(720, 382, "redrive"),
        ],
    )


def _sequence(title: str, lives: Sequence[str], steps: Sequence[tuple[int, int, str, str]], width: int = 920) -> str:
    """Lifelines, and messages between them from top to bottom: from, to, text, style. Equal ends make a note."""
    gap = (width - 184) / (len(lives) - 1)
    xs = [92 + gap * place for place in range(len(lives))]
    height = 84 + 36 * len(steps)
    parts = [_box(x - 88, 12, 176, 34, name) for x, name in zip(xs, lives, strict=True)]
    parts += [f'<line class="life" x1="{x:g}" x2="{x:g}" y1="46" y2="{height - 14}"/>' for x in xs]
    for row, (begin, end, text, style) in enumerate(steps):
        y = 84 + 36 * row
        if begin == end:
            last = begin == len(lives) - 1
            parts.append(_text(xs[begin] + (-8 if last else 8), y + 4, text, "note", "end" if last else "start"))
            continue
        side = 1 if end > begin else -1
        stop = (xs[begin] + xs[end]) / 2 if style == "lost" else xs[end] - 3 * side
        parts.append(_way([(xs[begin] + 3 * side, y), (stop, y)], style))
        parts.append(_text((xs[begin] + xs[end]) / 2, y - 7, text, "note"))
    return _svg(title, width, height, parts)


def publish() -> str:
    """What happens between publish() and the handler, with a lost reply on the way."""
    return _sequence(
        "The way of a publish",
        ("your program", "the library", "Redis: publish.lua", "a waiting consumer"),
        (
            (3, 2, "BLPOP wakeup: nothing to do, wait", ""),
            (0, 1, 'publish("order 1")', ""),
            (1, 1, "check the payload; take a reply slot: call number 42", ""),
            (1, 2, "EVALSHA publish, slot, 42, message", ""),
            (2, 2, "LPUSH pending; store the reply of call 42 in the slot", ""),
            (2, 1, "the reply is lost", "lost"),
            (2, 3, "wake-up", ""),
            (1, 2, "call 42 again", ""),
            (2, 1, "42 is done: the stored reply, no second message", ""),
            (1, 0, "True", ""),
            (3, 2, "claim.lua: a lease and a fencing token", ""),
            (2, 3, "order 1", ""),
        ),
    )


def lease() -> str:
    """Two consumers and one message: the first one dies or hangs."""

    def bar(begin: float, end: float, y: float, text: str) -> str:
        box = f'<rect class="held" x="{begin}" y="{y}" width="{end - begin}" height="26" rx="5"/>'
        return box + _text((begin + end) / 2, y + 18, text, "note")

    ticks = (140, 260, 340, 560, 620, 780)
    return _svg(
        "The life of a lease",
        920,
        250,
        [
            _text(10, 72, "consumer A", "name", "start"),
            _text(10, 152, "consumer B", "name", "start"),
            bar(140, 340, 54, "handler runs, token 7"),
            bar(620, 780, 134, "handler runs, token 8"),
            *(f'<line class="axis" x1="{x}" x2="{x}" y1="30" y2="205"/>' for x in ticks),
            _text(140, 24, "claim"),
            _text(260, 24, "heartbeat"),
            _text(340, 24, "A hangs"),
            _text(560, 24, "lease expires"),
            _text(660, 24, "B claims"),
            _text(780, 24, "ack by B"),
            _way([(340, 67), (700, 67), (700, 96)], "lost"),
            _text(692, 88, "a late ack by A: token 7 is no longer in leases,", "note", "end"),
            _text(692, 104, "so nothing changes, and lease_lost is True", "note", "end"),
            _way([(140, 222), (558, 222)]),
            _text(350, 240, "in flight, lease of A, renewed at the heartbeat", "note"),
            _way([(562, 222), (778, 222)]),
            _text(670, 240, "in flight, lease of B", "note"),
            _text(830, 226, "gone", "name"),
        ],
    )


def micro_batch() -> str:
    """How Spark reads a batch as often as it likes, and a message still arrives once."""
    return _sequence(
        "The life of a micro-batch",
        ("Spark's driver", "Redis: the group", "executors", "the sink"),
        (
            (0, 1, "acquire_group: a new epoch", ""),
            (0, 1, "fill_batch: messages into batch 7", ""),
            (0, 1, "seal_batch: batch 7 never changes again", ""),
            (0, 0, "write offset 7 to the checkpoint", ""),
            (2, 1, "read batch 7, page by page", ""),
            (2, 3, "rows of batch 7", ""),
            (2, 2, "after a crash: the same batch again", ""),
            (0, 3, "commit batch 7", ""),
            (0, 1, "ack_batch: everything up to 7 is gone", ""),
        ),
    )


DIAGRAMS: dict[str, Callable[[], str]] = {
    "message-states.svg": message_states,
    "publish.svg": publish,
    "lease.svg": lease,
    "micro-batch.svg": micro_batch,
}
