"""`make fuzz`: searches the parsers with atheris, guided by coverage, for as many minutes as you like.

Each parser gets the same share of the time, in a process of its own. What fails is printed as bytes, to become a test.
atheris is not part of the dependency group `test`: it is installed into an environment of its own (see the Makefile).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to search in all")
    parser.add_argument("--parser", help="search only this one, in this process, in the directory of --corpus")
    parser.add_argument("--corpus", help="where the inputs that reached new code are kept; by default nowhere")
    given = parser.parse_args()
    if given.parser:
        search(given.parser, given.minutes * 60, given.corpus)
        return 0
    return run_all(given.minutes, given.corpus)


def run_all(minutes: float, corpus: str | None) -> int:
    """Search with each parser in turn. Returns 1 if one of them failed."""
    from tests.fuzz.parsers import PARSERS

    failed = []
    for name in PARSERS:
        with tempfile.TemporaryDirectory() as directory:
            where = Path(corpus or directory, name)
            where.mkdir(parents=True, exist_ok=True)
            share = [f"--minutes={minutes / len(PARSERS)}", f"--parser={name}", f"--corpus={where}"]
            print(f"=== {name}", flush=True)
            if subprocess.run([sys.executable, "-m", "tests.fuzz.campaign", *share]).returncode:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "nothing was found")
    return 1 if failed else 0


def search(name: str, seconds: float, corpus: str) -> None:
    """Search with one parser until the time is over. libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # in an environment of its own

    with atheris.instrument_imports(include=["redis_message_queue"]):
        from tests.fuzz.parsers import PARSERS, SEEDS
    for number, seed in enumerate(SEEDS[name]):
        Path(corpus, f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        try:
            PARSERS[name](data)
        except BaseException:
            print(f"{name} failed for {data!r}", flush=True)
            raise

    limits = [f"-max_total_time={max(1, int(seconds))}", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"]
    artifacts = f"-artifact_prefix={corpus}/"
    atheris.Setup([sys.argv[0], *limits, artifacts, corpus], one)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
