"""What a published figure says about the machine: processor, number of CPUs and load, but no names."""

import os
import platform
from pathlib import Path


def processor() -> str:
    """The model of the processor, as the system calls it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def load() -> float:
    """How many processes wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 1)
