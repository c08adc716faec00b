"""Runs blocks of a page as one program, and notes what each print said. Started by test_blocks.py, as a script."""

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
notes = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
troubles: list[str] = []


def note_and_print(*values: Any, **options: Any) -> None:
    """`print`, with a note of the line that it stands on; one write for each, so that threads do not mix."""
    line = sys._getframe(1).f_lineno
    said = (options.get("sep") or " ").join(map(str, values))
    os.write(notes, (json.dumps([line, said.rstrip("\n")]) + "\n").encode())
    print(*values, **options)


def note_trouble(what: Any) -> None:
    """What Python would only mention: a warning in a finaliser, an exception that ends a thread."""
    troubles.append(f"{getattr(what, 'object', what)!r}: {what.exc_value!r}")


sys.unraisablehook = note_trouble
threading.excepthook = note_trouble
# Like `python page.py` in the reader's directory: what the page has saved can be imported.
sys.path[0] = os.getcwd()
sys.argv = ["page.py"]
namespace: dict[str, Any] = {"__name__": "__main__", "print": note_and_print}
for block in plan:
    # Blank lines before it give each line its number in the page, in tracebacks too.
    exec(compile("\n" * (block["line"] - 1) + block["code"], block["page"], "exec"), namespace)
namespace.clear()
gc.collect()
if troubles:
    sys.exit("\n".join(troubles))
