"""Invariants that a rule promises: see `fedsim.server.rule.Promise`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Violation, invariant, wrong
from fedsim.invariants.rows import Whole, whole_of
from fedsim.server.conflicts import ORTHOGONAL
from fedsim.server.rule import Floats

_SUM = 1e-9
"""Largest error of a sum of weights."""
_RESIDUAL = 1e-9
"""Rounding error of a least-norm point relative to the longest row: ten times the solver's tolerance."""


def weights_are_on_the_simplex(e: Evidence) -> Iterator[Violation]:
    """Where the rule promises a convex combination, weights are at least 0 and add up to 1 (or are all 0)."""
    e.need_training()
    if "convex" not in e.algorithm.promises:
        raise Unchecked(f"rule {e.config.algorithm.name!r} promises no convex combination")
    most = e.steps["max_weight"]
    yield from wrong(
        "steps", (most > 1 + _SUM) | (most < 0), "a max_weight from 0 to 1", lambda i: f"{most[i]:.12g}"
    )
    if e.config.record.conflicts == "off":
        return
    rows = e.conflicts
    yield from wrong(
        "conflicts", rows["weight"] < -_SUM, "a weight of at least 0", lambda i: f"{rows['weight'][i]:.6g}"
    )
    layered = e.algorithm.needs.gram == "blocks"
    if layered and e.config.record.conflicts == "model":
        return  # only the largest weight of each row over layers is recorded
    chosen = rows["block"] >= 0 if layered else rows["block"] == -1
    at = np.flatnonzero(chosen)
    cell = rows["step"][at] * (rows["block"].max(initial=0) + 2) + rows["block"][at] + 1
    cells, first, index = np.unique(cell, return_index=True, return_inverse=True)
    total = np.bincount(index, rows["weight"][at], minlength=len(cells))
    bad = np.zeros(len(rows), dtype=bool)
    bad[at[first]] = (np.abs(total - 1) > _SUM) & (total != 0)
    sums = np.zeros(len(rows))
    sums[at[first]] = total
    yield from wrong(
        "conflicts",
        bad,
        lambda i: f"weights of step {rows['step'][i]} that add up to 1",
        lambda i: f"{sums[i]:.9g}",
    )


def nobody_is_harmed_where_the_rule_promises_it(e: Evidence) -> Iterator[Violation]:
    """Where the rule promises descent for all, no update that counts is at more than 90 degrees from the direction."""
    e.need_training()
    if "descent" not in e.algorithm.promises:
        raise Unchecked(f"rule {e.config.algorithm.name!r} promises no common descent")
    whole = whole_of(e)
    slack = _rounding(e, whole)
    left_out = e.algorithm.negligible * (1 + _SUM) * _mean_norms(whole)[whole.step]
    counts = np.where(whole.age == 0, whole.norm > left_out, whole.weight != 0)
    if e.algorithm.needs.gram == "blocks":  # fragments are left out by their own norms
        with np.errstate(divide="ignore", invalid="ignore"):
            slack += np.nan_to_num(left_out / whole.norm, nan=np.inf)
    mask, tolerance = np.zeros(len(e.conflicts), dtype=bool), np.zeros(len(e.conflicts))
    mask[whole.rows], tolerance[whole.rows] = counts & (whole.cosine < -slack), slack
    yield from wrong(
        "conflicts",
        mask,
        lambda i: (
            f"a cosine of at least 0 (rounding: {tolerance[i]:.1e}) with client {e.conflicts['client'][i]}"
        ),
        lambda i: f"{e.conflicts['cosine'][i]:.6g} in step {e.conflicts['step'][i]}",
    )


def _mean_norms(whole: Whole) -> Floats:
    """Return [steps] the mean norm of the present rows of each step."""
    present = whole.age == 0
    total = np.bincount(
        whole.step[present], whole.norm[present], minlength=int(whole.step.max(initial=0)) + 1
    )
    return np.asarray(total / np.maximum(np.bincount(whole.step[present], minlength=len(total)), 1))


def _rounding(e: Evidence, whole: Whole) -> Floats:
    """Return how far below 0 rounding can put the cosine of each row.

    A least-norm point d of rows v is exact to `_RESIDUAL` max ‖v‖², so v·d / ‖v‖‖d‖ to that over ‖v‖‖d‖.
    """
    n = int(whole.step.max(initial=0)) + 1
    longest, total, length = np.zeros(n), np.zeros(n), np.zeros(n)
    np.maximum.at(longest, whole.step, whole.norm)
    np.add.at(total, whole.step, np.abs(whole.weight))
    steps = np.minimum(n, len(e.steps))
    stretched = e.steps["direction_norm"][:steps] / e.steps["step_length"][:steps]
    if e.algorithm.then is None:
        length[:steps] = np.nan_to_num(stretched)
    else:  # the step differs from the direction, whose norm follows from the rows if layers have equal weights
        along = np.nan_to_num(whole.weight * whole.cosine * whole.norm)
        np.add.at(length, whole.step, along)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = longest * total / np.maximum(length, 0.0)
        relative = longest[whole.step] / whole.norm
        slack: Floats = ORTHOGONAL + np.nan_to_num(_RESIDUAL * relative * scale[whole.step], nan=np.inf)
    return slack


INVARIANTS = (invariant(weights_are_on_the_simplex), invariant(nobody_is_harmed_where_the_rule_promises_it))
