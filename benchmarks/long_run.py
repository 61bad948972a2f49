"""Whether a long run ends as fast and as small as it began: seconds of a step at both ends, memory against prediction.

Seconds are processor time of this process, in all of its threads together, in which the whole run takes place; medians
over a hundred steps each: the last ones, and those after the first hundred, in which the history fills.

    python benchmarks/long_run.py                                    # FedLF, 10,000 clients, a simulated week
    python benchmarks/long_run.py --set memory.slots=500 --ends 50
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from fedsim import analysis
from fedsim.config.load import load_config
from fedsim.runs.progress import Progress
from fedsim.runs.simulate import simulate

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, nargs="?", default=HERE / "fedlf_week.toml")
    parser.add_argument("--set", action="append", default=[], help="a.b=value in the configuration")
    parser.add_argument("--ends", type=int, default=100, help="steps at each end of the run")
    parser.add_argument(
        "--after", type=int, default=100, help="steps at the start in which the history fills"
    )
    given = parser.parse_args()
    at: dict[int, float] = {}

    def note(progress: Progress) -> None:
        at.setdefault(progress.run_state.step, time.process_time())  # the last step is told twice

    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(
            load_config(given.config, tuple(given.set)), out=folder, workers=0, device="cpu", watch=note
        )
        manifest = analysis.open_run(result[0].folder).manifest
    took = [after - before for before, after in pairwise(at.values())]
    first, last = median(took[given.after :][: given.ends]), median(took[-given.ends :])
    predicted, peak = manifest["memory"]["predicted_bytes"]["total"], manifest["memory"]["peak_bytes"]
    wall = manifest["wall_s"]
    parts = ", ".join(
        f"{name} {1e3 * s / len(at):.0f}" for name, s in wall.items() if name not in ("total", "start")
    )
    print(
        "| steps | ms a step: first | last | last / first | predicted, MiB | peak, MiB | peak / predicted | wall, s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {len(at):,} | {1e3 * first:.0f} | {1e3 * last:.0f} | {last / first:.2f} | {predicted / 2**20:,.0f} "
        f"| {peak / 2**20:,.0f} | {peak / predicted:.2f} | {time.time() - started:.0f} |"
    )
    print(
        f"\nmedians of {given.ends} steps: after the first {given.after}, and the last; wall ms a step by part: "
        + parts
    )


if __name__ == "__main__":
    main()
