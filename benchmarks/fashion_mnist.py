"""FedAvg, FedFV and FedLF on Fashion-MNIST over several seeds, with every client always online and in a diurnal world.

Runs `examples/fashion_mnist.toml` (500 rounds) for each seed and world, skips what is there already, and prints the
table of `docs/results/fashion_mnist.md`. Needs the data set (FEDSIM_DATA); half an hour on one core for three seeds.

    python benchmarks/fashion_mnist.py --seeds 1 2 3 --out runs/fashion
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from fedsim import analysis
from fedsim.config.load import load_config
from fedsim.runs.simulate import simulate

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fashion_mnist.toml"
WORLDS = {
    "always_on": ("world.scenario=always_on",),
    "diurnal": ("world.scenario=diurnal", "cost.compute_scale=40"),
}
SHOWN = ("mean_percent", "std_percent", "worst5_percent", "worst10_percent", "angle_rad")


def run(world: str, seed: int, out: Path, workers: int) -> list[analysis.Run]:
    """Return the three runs of a seed in a world, made now unless they are there."""
    name = f"{world}_{seed}"
    configs = load_config(EXAMPLE, (*WORLDS[world], f"seed={seed}", f"name={name}"))
    folders = [out / config.name for config in configs]
    if not all((folder / "model.safetensors").is_file() for folder in folders):
        simulate(configs, out=out, workers=workers, force=True)
    return [analysis.open_run(folder) for folder in folders]


def numbers(run: analysis.Run, world: str) -> dict[str, object]:
    """Return what the table shows of a run: means over its last five evaluations, jobs lost, wall seconds."""
    history = run.history(metrics=SHOWN)
    jobs = run.manifest["jobs"]
    return {
        "world": world,
        "rule": run.label,
        **history[list(SHOWN)].tail(5).mean(),
        "final_angle_rad": history.angle_rad.iloc[-1],
        "final_mean_percent": history.mean_percent.iloc[-1],
        "lost_percent": 100 * jobs.get("lost", 0) / sum(jobs.values()),
        "virtual_h": run.manifest["virtual_us"] / 3.6e9,
        "wall_s": run.manifest["wall_s"]["total"],
    }


def main() -> None:
    """Run what is missing and print mean ± standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/fashion"))
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    rows = [
        numbers(found, world)
        for world in WORLDS
        for seed in options.seeds
        for found in run(world, seed, options.out, options.workers)
    ]
    grouped = pd.DataFrame(rows).groupby(["world", "rule"], sort=False)
    mean, spread = grouped.mean(), grouped.std(ddof=1)
    columns = mean.columns
    print("| world | rule |", " | ".join(columns), "|")
    print("|---|---|" + "---|" * len(columns))
    for key in mean.index:
        cells = [
            f"{mean.loc[key, c]:.3f} ± {spread.loc[key, c]:.3f}"
            if "rad" in c
            else f"{mean.loc[key, c]:.1f} ± {spread.loc[key, c]:.1f}"
            for c in columns
        ]
        print("|", " | ".join([*key, *cells]), "|")


if __name__ == "__main__":
    main()
