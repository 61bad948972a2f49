"""fedsim as a contestant of `works.py`: trains one work as `fedsim run` does, with its clock, records and run folder.

Four runs follow one another in one process and, with `--workers`, one pool: one round with all of the start-up, one
round again, `1 + rounds` rounds, and as many with an evaluation after each. Differences between them are seconds per
round and per evaluation, wherever the work is done and whoever waits for it.

    python benchmarks/fedsim_run.py W2 --rounds 20 --workers 0
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from fedsim.execution.actor_pool import start_pool
from works import WORKS, configured

if TYPE_CHECKING:
    from fedsim import analysis


def loop_s(run: analysis.Run) -> float:
    """Return the seconds of a run after its start-up."""
    wall = run.manifest["wall_s"]
    return float(wall["total"] - wall["start"])


def main() -> None:
    """Run, and print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="a.b=value in the configuration")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--since", type=float, default=time.time())
    given = parser.parse_args()
    plans = {
        "first": (1, 0),
        "again": (1, 0),
        "long": (1 + given.rounds, 0),
        "evaluated": (1 + given.rounds, 1),
    }
    work = WORKS[given.work]
    configs = [
        configured(work, name=name, rounds=rounds, every=every, quick=given.quick, sets=given.set)
        for name, (rounds, every) in plans.items()
    ]
    pool = start_pool(given.workers, "cpu", None)
    with tempfile.TemporaryDirectory() as folder, pool or nullcontext():
        from fedsim import analysis  # torch, while processes start and another one reads the data
        from fedsim.runs.simulate import simulate

        called = time.time()
        results = simulate(configs, out=folder, workers=pool or 0, device="cpu")
        first, again, long, evaluated = (analysis.open_run(result.folder) for result in results)
        tested = long.final()

        from contest import say

        say(
            first_s=called - given.since + float(first.manifest["wall_s"]["total"]),
            round_s=(loop_s(long) - loop_s(again)) / given.rounds,
            accuracy=float(tested.correct.sum() / tested.n.sum()),
            evaluate_s=(loop_s(evaluated) - loop_s(long)) / given.rounds,
        )


if __name__ == "__main__":
    main()
