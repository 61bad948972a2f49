"""What late and lost clients cost in speed: updates per second under buffered pacing in churn, against rounds.

W1 of `works.py` both times: rounds of 10 clients that are always online, and `fedbuff(50, 10)` among clients of whom a
third is online at any instant. Both run in this process in turns, each once before anything is timed; a ratio is taken
within each repetition.

    python benchmarks/pacing.py                 # one process
    python benchmarks/pacing.py --workers 2
"""

from __future__ import annotations

import argparse
import tempfile
from statistics import median

from fedsim_run import loop_s
from works import WORKS, configured

import analysis
from fedsim.simulation import simulate

PACINGS = {
    "sync, always online": (),
    "fedbuff(50, 10), churn": (
        'pacing={preset="fedbuff", concurrency=50, buffer=10}',
        "world.scenario=churn",
    ),
}


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", choices=WORKS, default="W1")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two steps, once: whether it runs, not how fast")
    given = parser.parse_args()
    if given.quick:
        given.steps, given.repeats = 2, 1
    plans = [(name, repeat) for repeat in range(given.repeats + 1) for name in PACINGS]
    configs = [
        configured(
            WORKS[given.work],
            name=f"{list(PACINGS).index(name)}-{repeat}",
            rounds=given.steps if repeat else 1,
            sets=PACINGS[name],
        )
        for name, repeat in plans
    ]
    per_s: dict[str, list[float]] = {name: [] for name in PACINGS}
    with tempfile.TemporaryDirectory() as folder:
        results = simulate(configs, out=folder, workers=given.workers, device="cpu")
        for (name, repeat), result in zip(plans, results, strict=True):
            run = analysis.open(result.folder)
            if repeat:
                per_s[name].append(float(run.steps["updates"].to_numpy().sum()) / loop_s(run))
    base = per_s[next(iter(PACINGS))]
    print("| pacing | updates a second | ratio |")
    print("|---|---|---|")
    for name, found in per_s.items():
        ratio = median(a / b for a, b in zip(found, base, strict=True))
        print(f"| {name} | {median(found):.0f} | {ratio:.2f} |")
    print(
        f"\n{given.repeats} interleaved repetitions of {given.steps} steps, {given.workers} workers; medians"
    )


if __name__ == "__main__":
    main()
