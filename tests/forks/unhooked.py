"""A fork in C, as uWSGI does it: Python's fork hooks do not run."""

import ctypes

# PyDLL keeps the GIL, so that the child continues with it.
_libc = ctypes.PyDLL(None, use_errno=True)


def unhooked_fork() -> int:
    pid = _libc.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "fork failed")
    return pid
