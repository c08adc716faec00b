"""A fork in C, as uWSGI does it: Python's fork hooks do not run."""

import ctypes
import sys
import time

# PyDLL keeps the GIL, so that the child continues with it.
_libc = ctypes.PyDLL(None, use_errno=True)
# How long a thread waits for the GIL before it asks for it; usually 5 ms.
_PATIENCE_SECONDS = 1.0


def unhooked_fork() -> int:
    """Fork. A child returns 0, as from `os.fork`.

    A child whose parent has been asked for the GIL by another thread waits for that thread for ever, because there it
    does not exist. So the threads are made patient first, and those that wait already get their turn.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_PATIENCE_SECONDS)
    time.sleep(4 * interval)
    try:
        pid = _libc.fork()
    finally:
        sys.setswitchinterval(interval)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "fork failed")
    return pid
