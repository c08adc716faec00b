"""The CPUs that client and server run on.

The scheduler sometimes puts a client and its server on one CPU and sometimes on two, which changes the CPU time of the
same LPUSH by a factor of 1.6: raw redis-py compared with itself then came out at up to 1.29. So both placements are
measured separately.
"""

import os

# together: the work alone, and the steadier figure. apart: includes the cost of waking another CPU.
PLACEMENTS = ("together", "apart")
FREE = "free"


def possible() -> tuple[str, ...]:
    """Both placements if the system can pin processes to two CPUs, otherwise only `free`."""
    pinnable = hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1
    return PLACEMENTS if pinnable else (FREE,)


def place(placement: str, *, client: int, server: int) -> None:
    """Pin the client and the server process, given by their ids, to CPUs."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    first, last, all_of_them = {cpus[0]}, {cpus[-1]}, set(cpus)
    places = {"together": (last, last), "apart": (first, last), FREE: (all_of_them, all_of_them)}
    for process, where in zip((client, server), places[placement], strict=True):
        os.sched_setaffinity(process, where)
