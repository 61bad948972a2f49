"""Rules under attack: the two tables of `docs/results/attacks.md`.

Adult, two clients (PhDs and all others), of which the PhDs add a constant to the loss that they report; and
Fashion-MNIST among 50 clients, a tenth of which multiply their loss, and with it their update. Skips runs that are
there already. Needs both data sets (FEDSIM_DATA); about an hour of one core.

    python benchmarks/attacks.py --seeds 1 2 3 --out runs/attacks --jobs 2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim import analysis
from fedsim.config.load import parse
from fedsim.runs.simulate import simulate

RULES: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": {"name": "fedavg"}},
    "FedAvg, clipped": {"algorithm": {"name": "fedavg"}, "bad_updates": {"policy": "clip", "limit": 1.0}},
    "q-FedAvg, q = 2": {"algorithm": {"name": "qfedavg", "q": 2}},
    "AFL": {"algorithm": {"name": "afl"}},
    "DRFL": {"algorithm": {"name": "drfl"}},
    "FedFV": {"algorithm": {"name": "fedfv"}},
    "FedLF": {"algorithm": {"name": "fedlf", "lengths": "raw"}},
    "FedMGDA+": {"algorithm": {"name": "fedmgda_plus"}},
}
ADULT: dict[str, Any] = {
    "task": {"name": "adult", "clients": 2, "pool": "official", "fractions": [1.0, 0.0, 0.0]},
    "pacing": {"preset": "sync", "clients": 2},
    "train": {"batch_size": 100, "lr": 0.1},
    "stop": {"steps": 50},
}
FASHION: dict[str, Any] = {
    "task": {"name": "fashion_mnist", "clients": 50, "pool": "train"},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [50]},
    "pacing": {"preset": "sync", "clients": 10},
    "train": {"batch_size": 50, "lr": 0.1},
    "stop": {"steps": 50},
}
STRENGTHS = {"adult": (0, 1, 10, 100), "fashion": (1, 10, 100)}
Cell = tuple[str, str, int, int]


def cells(seeds: Sequence[int]) -> list[Cell]:
    """Return data, rule, strength and seed of each run; clipping has no say in what a loss is."""
    return [
        (data, rule, strength, seed)
        for data, strengths in STRENGTHS.items()
        for rule in RULES
        if data == "fashion" or "clipped" not in rule
        for strength in strengths
        for seed in seeds
    ]


def configuration(cell: Cell) -> dict[str, Any]:
    """Return the configuration of a run; the weakest attacks change nothing, but name the same clients."""
    data, rule, strength, seed = cell
    attack: dict[str, Any] = {"name": "loss_bias", "bias": strength, "clients": [0]}
    if data == "fashion":
        attack = {"name": "scale", "factor": strength, "losses": True, "share": 0.1}
    plain = "".join(letter for letter in rule.lower() if letter.isalnum())
    common = {
        "name": f"{data}_{plain}_{strength}_{seed}",
        "seed": seed,
        "evaluate": {"every_steps": 0},
        "adversary": attack,
    }
    return (ADULT if data == "adult" else FASHION) | RULES[rule] | common


def run(out: Path, cell: Cell) -> Path:
    """Return the folder of a run, made now unless it is there."""
    config = parse(configuration(cell), "benchmarks/attacks.py", "attacks")[0]
    if not (out / config.name / "model.safetensors").is_file():
        simulate(config, out=out, workers=0, force=True)
    return out / config.name


def numbers(cell: Cell, folder: Path) -> dict[str, Any]:
    """Return what the tables show of a run."""
    opened = analysis.open_run(folder)
    found = opened.final()
    row = {"data": cell[0], "rule": cell[1], "strength": cell[2], "seed": cell[3]}
    if cell[0] == "adult":
        phd, others = 100 * found.accuracy
        return row | {"PhD %": phd, "non-PhD %": others}
    honest = found.without(opened.adversaries).summary(["mean_percent", "worst10_percent"])
    return row | {"honest mean %": honest["mean_percent"], "honest worst 10 % %": honest["worst10_percent"]}


def show(frame: pd.DataFrame, word: str, columns: Sequence[str]) -> None:
    """Print mean ± standard deviation over seeds by rule and strength, and what the strongest attack takes away."""
    strengths = sorted(frame.strength.unique())
    heads = [f"{column}, {word} {s}" for column in columns for s in strengths]
    print("| rule | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    grouped = frame.groupby(["rule", "strength"])[list(columns)]
    mean, spread = grouped.mean(), grouped.std(ddof=1)
    rules = list(dict.fromkeys(frame.rule))
    for rule in rules:
        texts = [
            f"{mean.loc[(rule, s), c]:.1f} ± {spread.loc[(rule, s), c]:.1f}"
            for c in columns
            for s in strengths
        ]
        print("|", " | ".join([rule, *texts]), "|")
    print(
        f"\nFrom {word} {strengths[0]} to {strengths[-1]}, in points of {columns[-1 if 'bias' in word else 0]}:\n"
    )
    column = columns[-1 if "bias" in word else 0]
    change = {r: mean.loc[(r, strengths[-1]), column] - mean.loc[(r, strengths[0]), column] for r in rules}
    for rule in sorted(rules, key=lambda r: -change[r]):
        print(f"- {rule}: {change[rule]:+.1f}")
    print()


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    wanted = cells(options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        folders = list(pool.map(partial(run, options.out), wanted))
    rows = [numbers(cell, folder) for cell, folder in zip(wanted, folders, strict=True)]
    adult, fashion = ([row for row in rows if row["data"] == data] for data in STRENGTHS)
    show(pd.DataFrame(adult), "bias", ("PhD %", "non-PhD %"))
    show(pd.DataFrame(fashion), "factor", ("honest mean %", "honest worst 10 % %"))


if __name__ == "__main__":
    main()
