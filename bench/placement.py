"""Which CPU a process runs on.

Left to the scheduler, a client and its server sometimes share a CPU and sometimes wake each other across two,
which changes the CPU time of the same LPUSH by a factor of 1.6: raw redis-py against itself then came out at up to
1.29. So both placements are measured, each by itself.
"""

import os

# together: the work alone, and the steadier figure. apart: with what it costs to wake another CPU.
PLACEMENTS = ("together", "apart")
FREE = "free"


def possible() -> tuple[str, ...]:
    """Both where the system can pin processes to two CPUs, else whatever the scheduler does."""
    pinnable = hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1
    return PLACEMENTS if pinnable else (FREE,)


def place(placement: str, *, client: int, server: int) -> None:
    """Put two processes, given by their ids, where the placement says."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    first, last, all_of_them = {cpus[0]}, {cpus[-1]}, set(cpus)
    places = {"together": (last, last), "apart": (first, last), FREE: (all_of_them, all_of_them)}
    for process, where in zip((client, server), places[placement], strict=True):
        os.sched_setaffinity(process, where)
