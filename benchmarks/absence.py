"""Rules under three timings where two classes are absent by day: the table of `docs/results/absence.md`.

Runs `examples/absence.toml` for each rule, timing and seed, skips what is there already, and prints the table: at equal
virtual time, means over the evaluations of the second day, averaged over seeds, and paired differences to FedAvg.

    python benchmarks/absence.py --seeds 1 2 3 --out runs/absence --jobs 2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from fedsim import analysis
from fedsim.config.load import load_config
from fedsim.runs.simulate import simulate

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "absence.toml"
RULES = {
    "FedAvg": ("algorithm.name=fedavg",),
    "FedFV": ("algorithm.name=fedfv", "algorithm.tau=5"),
    "FedFV, late history": ("algorithm.name=fedfv", "algorithm.tau=5", "pacing.late=history"),
    "FedLF": ("algorithm.name=fedlf", "algorithm.lengths=raw", "train.lr=0.03"),
    "FedMGDA+": ("algorithm.name=fedmgda_plus",),
}
TIMINGS = {
    "sync": ("pacing.preset=sync", "pacing.clients=10"),
    "deadline": ("pacing.preset=deadline", "pacing.clients=10", "pacing.deadline=3min"),
    "fedbuff": ('pacing={preset="fedbuff", concurrency=10, buffer=5}',),
}
SHOWN = ("mean_percent", "angle_rad", "worst10_percent")
COLUMNS = {
    "mean_percent": "mean %",
    "angle_rad": "angle rad",
    "worst10_percent": "worst 10 % %",
    "night_percent": "night clients %",
    "night_least_percent": "night clients, worst hour %",
    "night_updates_percent": "night updates %",
    "steps": "steps",
}
LABELS = (6, 9)
Cell = tuple[str, str, int]


def cells(seeds: Sequence[int]) -> list[Cell]:
    """Return rule, timing and seed of each run; late updates exist only where there is a deadline."""
    return [
        (rule, timing, seed)
        for seed in seeds
        for timing in TIMINGS
        for rule in RULES
        if timing == "deadline" or "late" not in rule
    ]


def run(out: Path, cell: Cell) -> Path:
    """Return the folder of a run, made now unless it is there."""
    rule, timing, seed = cell
    name = f"{timing}_{rule.lower().replace(', ', '_').replace(' ', '_').replace('+', '_plus')}_{seed}"
    config = load_config(EXAMPLE, (*TIMINGS[timing], *RULES[rule], f"seed={seed}", f"name={name}"))[0]
    if not (out / name / "model.safetensors").is_file():
        simulate(config, out=out, workers=0, force=True)
    return out / name


def numbers(run: analysis.Run) -> dict[str, float]:
    """Return what the table shows of a run."""
    history = run.history(metrics=SHOWN)
    half_us = history.time_us.max() / 2
    late = history[history.time_us > half_us]
    evals, jobs = run.frame("evals"), run.frame("jobs")
    last = evals[(evals.time_us > half_us) & evals.client.isin(night_clients(run))]
    by_hour = 100 * last.groupby("time_us").accuracy.mean()
    used = jobs[jobs.status == "aggregated"]
    return {
        **late[list(SHOWN)].mean(),
        "night_percent": by_hour.mean(),
        "night_least_percent": by_hour.min(),
        "night_updates_percent": 100 * used.client.isin(last.client.unique()).mean(),
        "steps": float(run.manifest["steps"]),
    }


def night_clients(run: analysis.Run) -> list[int]:
    """Return the clients whose training samples all have one of `LABELS`, or half of them at least."""
    from fedsim.config.data import federation
    from fedsim.config.load import load_config as read
    from fedsim.data.federated_data import label_counts

    counts = label_counts(federation(read(run.folder / "config.resolved.toml")[0])[1])
    share = counts[:, list(LABELS)].sum(axis=1) / counts.sum(axis=1)
    return np.flatnonzero(share >= 0.4).tolist()


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/absence"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    wanted = cells(options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        folders = list(pool.map(partial(run, options.out), wanted))
    frame = pd.DataFrame(
        [
            {"timing": timing, "rule": rule, "seed": seed, **numbers(analysis.open_run(folder))}
            for (rule, timing, seed), folder in zip(wanted, folders, strict=True)
        ]
    )
    show(frame)


def show(frame: pd.DataFrame) -> None:
    """Print mean ± standard deviation over seeds, then differences to FedAvg in the same world, seed by seed."""
    grouped = frame.groupby(["timing", "rule"], sort=False)[list(COLUMNS)]
    mean, spread = grouped.mean(), grouped.std(ddof=1)
    print("| timing | rule | " + " | ".join(COLUMNS.values()) + " |")
    print("|---|---|" + "---|" * len(COLUMNS))
    for key in mean.index:
        print(
            "|", " | ".join([*key, *(_shown(c, mean.loc[key, c], spread.loc[key, c]) for c in COLUMNS)]), "|"
        )
    print("\nMinus FedAvg in the same world with the same timing, seed by seed: mean (least to most)\n")
    shown = list(COLUMNS)[:5]
    paired = frame.set_index(["timing", "seed", "rule"])[shown].unstack("rule")
    print("| timing | rule | " + " | ".join(COLUMNS[c] for c in shown) + " |")
    print("|---|---|" + "---|" * len(shown))
    for timing, rule in mean.index:
        if rule != "FedAvg":
            texts = [_gap(c, (paired[c].loc[timing][rule] - paired[c].loc[timing]["FedAvg"])) for c in shown]
            print("|", " | ".join([timing, rule, *texts]), "|")


def _gap(column: str, gaps: pd.Series) -> str:
    digits = 3 if "rad" in column else 1
    return f"{gaps.mean():+.{digits}f} ({gaps.min():+.{digits}f} to {gaps.max():+.{digits}f})"


def _shown(column: str, mean: float, spread: float) -> str:
    digits = 3 if "rad" in column else (0 if column == "steps" else 1)
    return f"{mean:.{digits}f} ± {spread:.{digits}f}"


if __name__ == "__main__":
    main()
