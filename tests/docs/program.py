"""Runs blocks of a page as one program, and records the output of each print. test_blocks.py starts it as a script."""

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
    """`print` that records its line number; one write each, so that the output of threads is not mixed."""
    line = sys._getframe(1).f_lineno
    said = (options.get("sep") or " ").join(map(str, values))
    os.write(notes, (json.dumps([line, said.rstrip("\n")]) + "\n").encode())
    print(*values, **options)


def note_trouble(what: Any) -> None:
    """Fail where Python would only print: a warning in a finalizer, an exception that ends a thread."""
    troubles.append(f"{getattr(what, 'object', what)!r}: {what.exc_value!r}")


sys.unraisablehook = note_trouble
threading.excepthook = note_trouble
# Like `python page.py` in the reader's directory: files that the page saved can be imported.
sys.path[0] = os.getcwd()
sys.argv = ["page.py"]
namespace: dict[str, Any] = {"__name__": "__main__", "print": note_and_print}
for block in plan:
    # Blank lines before the code give each line its number in the page, also in tracebacks.
    exec(compile("\n" * (block["line"] - 1) + block["code"], block["page"], "exec"), namespace)
namespace.clear()
gc.collect()
if troubles:
    sys.exit("\n".join(troubles))
