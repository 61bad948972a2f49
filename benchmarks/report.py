"""How long does the report of a large run take, and how large is its page?

Trains softmax on few samples per client under FedLF, with conflicts recorded layer by layer and evaluations of all
clients, and writes the report of the run with `fedsim report` in a process of its own, start included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedsim import analysis
from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.runs.simulate import simulate

COLUMNS = ("clients", "steps", "jobs", "rows of evaluations", "rows of conflicts", "`fedsim report`", "page")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--clients", type=int, default=10_000)
    given.add_argument("--steps", type=int, default=1000)
    given.add_argument("--repeats", type=int, default=3, help="the median counts")
    args = given.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as place:
        folder = simulate(configured(args.clients, args.steps), out=place, workers=0)[0].folder
        page = Path(place) / "report.html"
        took = sorted(seconds(folder, page) for _ in range(args.repeats))[args.repeats // 2]
        run = analysis.open_run(folder)
        rows = (len(table) for table in (run.jobs, run.evals, run.conflicts))
        counts = (f"{n:,}" for n in (args.clients, len(run.steps), *rows))
        print(f"| {' | '.join(counts)} | {took:.1f} s | {page.stat().st_size / 1e6:.2f} MB |")


def configured(clients: int, steps: int) -> RunConfig:
    """Return the run, with some twenty evaluations."""
    raw = {
        "name": "large",
        "task": {"name": "synthetic", "clients": clients, "sizes": "fixed", "samples": 15},
        "model": {"name": "softmax"},
        "world": {"scenario": "diurnal", "horizon": "1d"},
        "cost": {"payload": "5 MB", "compute_scale": 100},
        "pacing": {"preset": "sync", "clients": 20},
        "train": {"batch_size": 10, "lr": 0.01},
        "algorithm": {"name": "fedlf"},
        "memory": {"slots": 120},
        "record": {"conflicts": "layers"},
        "stop": {"steps": steps},
        "evaluate": {"every_steps": max(1, steps // 20)},
    }
    return parse(raw, "large", "large")[0]


def seconds(folder: Path, page: Path) -> float:
    """Write the report and return how long that took on the wall clock."""
    code = "from fedsim.cli.main import main; main()"
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code, "report", str(folder), "--out", str(page)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
