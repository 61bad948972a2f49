"""What it costs to watch a run: the dashboard's and the events' share of its time, with steps of a few milliseconds.

Seconds are processor time of this process, in which the whole run takes place, and those within the watcher: it has no
thread of its own, so that nothing is spent elsewhere. Medians over repetitions, one of each kind after the other.

    python benchmarks/watching.py                    # FedAvg of the quickstart: 426 steps
    python benchmarks/watching.py --repeat 9 --set pacing.clients=2
"""

from __future__ import annotations

import argparse
import io
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from time import process_time, thread_time

from rich.console import Console

from fedsim.cli.watching.dashboard import dashboard
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.integrations.trackers import TensorBoardLogger
from fedsim.runs.progress import Progress, Watch
from fedsim.runs.simulate import simulate

HERE = Path(__file__).resolve().parent
KINDS = ("--live", "--tensorboard")


def main() -> None:
    """Run each kind in turn, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, nargs="?", default=HERE.parent / "examples" / "quickstart.toml")
    parser.add_argument("--set", action="append", default=[], help="a.b=value in the configuration")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    config = load_config(given.config, tuple(given.set))[0]
    found = [{kind: measured(config, kind) for kind in KINDS} for _ in range(given.repeat)]
    print("| watched by | share of the run, % | us per step |")
    print("|---|---|---|")
    for kind in KINDS:
        share, step_us = (median(each[kind][i] for each in found) for i in range(2))
        print(f"| `{kind}` | {share:.1f} | {step_us:.0f} |")


def measured(config: RunConfig, kind: str) -> tuple[float, float]:
    """Return the share of a run that its watcher takes, in percent, and the microseconds per step."""
    spent, steps = 0.0, 0
    with tempfile.TemporaryDirectory() as folder, watcher(kind, Path(folder) / "events") as watch:

        def timed(progress: Progress) -> None:
            nonlocal spent, steps
            began = thread_time()
            watch(progress)
            spent, steps = spent + thread_time() - began, progress.run_state.step

        began = process_time()
        simulate(config, out=Path(folder) / "runs", workers=0, device="cpu", watch=timed)
        return 100 * spent / (process_time() - began), 1e6 * spent / steps


def watcher(kind: str, events: Path) -> AbstractContextManager[Watch]:
    """Return a watcher of a kind."""
    if kind == "--tensorboard":
        return TensorBoardLogger(events)
    return dashboard(Console(file=io.StringIO(), force_terminal=True, width=120, height=40), ("run",))


if __name__ == "__main__":
    main()
