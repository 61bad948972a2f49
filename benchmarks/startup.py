"""How long it takes from asking for a run to the end of its first round: in one process, and with two Ray workers.

Each run is a process of its own, and p2, the floor of `works.py`, is there to compare: it imports torch, reads the
samples and forks. What is timed of fedsim ends with the run folder of a run of one round: two evaluations count too.

    python benchmarks/startup.py --works W1 W2 --repeats 5
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

from fedsim.runs.build import prepare
from works import TITLES, WORKS, arguments, command, compete, configured, median, write_partition

NAMES = ("p2", "inline", "ray2")


def main() -> None:
    """Measure, interleaved, and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["W1", "W2"])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repetition of smaller works")
    given = parser.parse_args()
    told = arguments().parse_args(["--quick"] if given.quick else [])
    repeats = 1 if given.quick else given.repeats
    print("| work | what | start-up and first round, s | fastest, s |\n|---|---|---|---|")
    for work in given.works:
        seconds: dict[str, list[float]] = {name: [] for name in given.only}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "work.npz"
            write_partition(prepare(configured(WORKS[work], quick=given.quick)), file)
            for _ in range(repeats):
                for name, found in seconds.items():
                    run = compete(name, command(name, work, file, told), rounds=1, timeout_s=told.timeout)
                    found.append(run["first_s"] if run else math.nan)
        for name, found in seconds.items():
            fastest = min((s for s in found if not math.isnan(s)), default=math.nan)
            print(f"| {work} | {TITLES.get(name, name)} | {median(found):.1f} | {fastest:.1f} |")


if __name__ == "__main__":
    main()
