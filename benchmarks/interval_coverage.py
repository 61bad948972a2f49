"""How often 95 % intervals hold the true value: samples of n units from known laws, for every kind of interval.

    python benchmarks/interval_coverage.py --replicates 1000

prints the table of docs/statistics.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from fedsim.analysis.statistics.audit import by_age
from fedsim.analysis.statistics.bootstrap import interval, mean_of
from fedsim.analysis.statistics.contrasts import of_groups, of_tails
from fedsim.analysis.statistics.correlation import pearson, spearman
from fedsim.analysis.statistics.paired.differences import t_interval
from fedsim.analysis.statistics.paired.pairing import pairing_factor
from fedsim.common.arrays import Floats

Ends = tuple[float, float] | None
Law = Callable[[np.random.Generator, int], tuple[Ends, float]]
"""Draws a sample of n units; returns its interval and the true value."""
SIZES = (3, 5, 10, 20)
DRAWS, ALIKE, RHO = 1000, 4, 0.5
"""Resamples; clients with the same labels; correlation of what is paired, alike or correlated."""


def student(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return t_interval(generator.standard_normal(n)), 0.0


def student_skewed(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return t_interval(generator.standard_exponential(n)), 1.0


def mean(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return interval(mean_of(generator.standard_normal(n)), n, draws=DRAWS), 0.0


def mean_skewed(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return interval(mean_of(generator.standard_exponential(n)), n, draws=DRAWS), 1.0


def pairing(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    a, b = correlated(generator, n)
    return pairing_factor(a, b)[1], 1 / (1 - RHO)


def audit(runs: bool) -> Law:
    """Return the cosine of an audit of n runs with 20 clients each, or of n clients of one run."""

    def law(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
        own = generator.standard_normal((n, 20) if runs else (1, n))
        shared = generator.standard_normal((len(own), 1)) if runs else 0.0
        cosine = (math.sqrt(RHO) * shared + math.sqrt(1 - RHO) * own) / 10
        run, client = np.indices(cosine.shape)
        frame = pd.DataFrame({"run": run.ravel(), "client": client.ravel(), "cosine": cosine.ravel()})
        told = {"age": 1, "norm_ratio": 1.0, "remembered_with_mean": 0.5, "true_with_mean": 0.5}
        found = by_age(frame.assign(**told)).iloc[0]
        low, high = float(found["cosine_low"]), float(found["cosine_high"])
        return (None if math.isnan(low) else (low, high)), 0.0

    return law


def group(together: bool) -> Law:
    """Return the mean of n sets of clients with the same labels, which are drawn together or one by one."""

    def law(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
        values, sets = alike(generator, n)
        return interval(mean_of(values), len(values), draws=DRAWS, clusters=sets if together else None), 0.0

    return law


def correlation_alike(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    (x, sets), (y, _) = alike(generator, n), alike(generator, n)
    y = RHO * x + math.sqrt(1 - RHO**2) * y
    return interval(pearson(x, y, np.ones(len(x))), len(x), draws=DRAWS, clusters=sets), RHO


def correlation_pearson(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return interval(pearson(*correlated(generator, n), np.ones(n)), n, draws=DRAWS), RHO


def correlation_spearman(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    true = 6 / math.pi * math.asin(RHO / 2)
    return interval(spearman(*correlated(generator, n), np.ones(n)), n, draws=DRAWS), true


def welch(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return of_groups("", generator.standard_normal(n), 2 * generator.standard_normal(3 * n), 1).interval, 0.0


def tails(generator: np.random.Generator, n: int) -> tuple[Ends, float]:
    return of_tails("", *correlated(generator, n), 10, 1).interval, 0.0


def correlated(generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    x, other = generator.standard_normal((2, n))
    return x, RHO * x + math.sqrt(1 - RHO**2) * other


def alike(generator: np.random.Generator, n: int) -> tuple[Floats, np.ndarray]:
    """Return the values of n sets of ALIKE clients, of which those of a set have the correlation RHO, and the sets."""
    sets = np.repeat(np.arange(n), ALIKE)
    shared, own = generator.standard_normal(n), generator.standard_normal(n * ALIKE)
    return math.sqrt(RHO) * shared[sets] + math.sqrt(1 - RHO) * own, sets


LAWS: dict[str, Law] = {
    "mean difference or interaction, Student's t; n seeds or clients, normal": student,
    "Student's t, skewed (exponential)": student_skewed,
    "mean or mean difference, bootstrap; n seeds or clients, normal": mean,
    "bootstrap, skewed (exponential)": mean_skewed,
    "pairing factor of 2; n seeds, normal": pairing,
    "audit; n runs of 20 clients": audit(runs=True),
    "audit; n clients of one run": audit(runs=False),
    f"mean of a group; n sets of {ALIKE} clients with the same labels, drawn together": group(together=True),
    f"mean of a group; n sets of {ALIKE} clients, drawn one by one": group(together=False),
    "Pearson's correlation; n clients": correlation_pearson,
    "Spearman's correlation; n clients": correlation_spearman,
    f"Pearson's correlation; n sets of {ALIKE} clients with the same labels, drawn together": correlation_alike,
    "difference of groups of n and 3n clients, Welch's t": welch,
    "difference of the worst 10 % of clients, bootstrap; n clients": tails,
}


def coverage(law: Law, n: int, replicates: int) -> float:
    """Return the share of intervals that hold the true value; NaN if most samples have no interval."""
    held = []
    for i in range(replicates):
        ends, true = law(np.random.default_rng([n, i]), n)
        if ends is not None:
            held.append(ends[0] <= true <= ends[1])
    return float(np.mean(held)) if 2 * len(held) > replicates else math.nan


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=1000)
    replicates = parser.parse_args().replicates
    print("| interval |", " | ".join(f"n = {n}" for n in SIZES), "|")
    print("|---|" + "---|" * len(SIZES))
    for name, law in LAWS.items():
        shares = (coverage(law, n, replicates) for n in SIZES)
        print(
            "|",
            name,
            "|",
            " | ".join("–" if math.isnan(s) else f"{100 * s:.1f} %" for s in shares),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main()
