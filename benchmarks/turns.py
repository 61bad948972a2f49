"""Variants of one work in turns, in one process or one pool: what they share, and how a ratio is taken."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from statistics import median

from fedsim import analysis
from fedsim.runs.simulate import simulate
from fedsim_run import loop_s
from works import WORKS, configured

Variants = Mapping[str, Sequence[str]]
"""By title, assignments `a.b=value` in the configuration of a work."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--work", choices=WORKS, default="W1")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two steps, once: whether it runs, not how fast")
    return parser


def measure(variants: Variants, given: argparse.Namespace) -> dict[str, list[tuple[float, int]]]:
    """Return by variant, for each repetition, the seconds of a run after its start-up, and the updates that it used.

    Each variant runs once, for a step, before anything is timed; then all of them in turns.
    """
    if given.quick:
        given.steps, given.repeats = 2, 1
    plans = [(name, repeat) for repeat in range(given.repeats + 1) for name in variants]
    configs = [
        configured(
            WORKS[given.work],
            name=f"{list(variants).index(name)}-{repeat}",
            rounds=given.steps if repeat else 1,
            sets=variants[name],
        )
        for name, repeat in plans
    ]
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        results = simulate(configs, out=folder, workers=given.workers, device="cpu")
        for (name, repeat), result in zip(plans, results, strict=True):
            run = analysis.open_run(result.folder)
            if repeat:
                found[name].append((loop_s(run), int(run.steps["updates"].to_numpy().sum())))
    return found


def show(kind: str, what: str, found: Mapping[str, Sequence[float]], given: argparse.Namespace) -> None:
    """Print a table of medians over repetitions, and of the ratios within each to the first variant."""
    first, base = next(iter(found.items()))
    print(f"| {kind} | {what} | {first} = 1 |")
    print("|---|---|---|")
    for name, own in found.items():
        ratio = median(a / b for a, b in zip(own, base, strict=True))
        print(f"| {name} | {median(own):.0f} | {ratio:.2f} |")
    print(
        f"\n{given.repeats} interleaved repetitions of {given.steps} steps, {given.workers} workers; medians"
    )
