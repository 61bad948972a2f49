"""Invariants that a rule promises: see `fedsim.server.rule.Promise`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.invariants.evidence import Evidence, Unchecked, Whole
from fedsim.invariants.finding import Violation, first, repeated
from fedsim.server.conflicts import ORTHOGONAL
from fedsim.server.rule import Floats

_SUM = 1e-9
"""Largest error of a sum of weights."""
_RESIDUAL = 1e-9
"""Rounding error of a least-norm point relative to the longest row: ten times the solver's tolerance."""


def weights_of_convex_rules_are_nonnegative_and_add_up_to_1(e: Evidence) -> Iterator[Violation]:
    """Where the rule promises a convex combination, weights are at least 0 and add up to 1 (or are all 0)."""
    e.need_training()
    if "convex" not in e.algorithm.promises:
        raise Unchecked(f"rule {e.config.algorithm.name!r} promises no convex combination")
    most = e.steps["max_weight"]
    for i, more in first((most > 1 + _SUM) | (most < 0)):
        yield Violation("steps", i, "a max_weight from 0 to 1", f"{most[i]:.12g}", more)
    if e.config.record.conflicts == "off":
        return
    step, block, weight = (e.conflicts[name] for name in ("step", "block", "weight"))
    for i, more in first(weight < -_SUM):
        yield Violation("conflicts", i, "a weight of at least 0", f"{weight[i]:.6g}", more)
    layered = e.algorithm.needs.gram == "blocks"
    if layered and e.config.record.conflicts == "model":
        return  # only the largest weight of each row over layers is recorded
    at = np.flatnonzero(block >= 0 if layered else block == -1)
    cell = step[at] * (block.max(initial=0) + 2) + block[at] + 1
    index = np.unique(cell, return_inverse=True)[1]
    total = np.bincount(index, weight[at])[index]
    for k, more in first(~repeated(cell) & (np.abs(total - 1) > _SUM) & (total != 0)):
        wanted = f"weights of step {step[at[k]]} that add up to 1"
        yield Violation("conflicts", int(at[k]), wanted, f"{total[k]:.9g}", more)


def directions_of_descent_rules_oppose_no_update(e: Evidence) -> Iterator[Violation]:
    """Where the rule promises descent for all, no update that counts is at more than 90 degrees from the direction."""
    e.need_training()
    if "descent" not in e.algorithm.promises:
        raise Unchecked(f"rule {e.config.algorithm.name!r} promises no common descent")
    whole = e.whole
    slack = _rounding(e, whole)
    left_out = e.algorithm.negligible * (1 + _SUM) * _mean_norms(whole)[whole.step]
    counts = np.where(whole.age == 0, whole.norm > left_out, whole.weight != 0)
    if e.algorithm.needs.gram == "blocks":  # fragments are left out by their own norms
        with np.errstate(divide="ignore", invalid="ignore"):
            slack += np.nan_to_num(left_out / whole.norm, nan=np.inf)
    for k, more in first(counts & (whole.cosine < -slack)):
        wanted = f"a cosine of at least 0 (rounding: {slack[k]:.1e}) with client {whole.client[k]}"
        recorded = f"{whole.cosine[k]:.6g} in step {whole.step[k]}"
        yield Violation("conflicts", int(whole.rows[k]), wanted, recorded, more)


def _mean_norms(whole: Whole) -> Floats:
    """Return [steps] the mean norm of the present rows of each step."""
    present, n = whole.age == 0, int(whole.step.max(initial=0)) + 1
    total = np.bincount(whole.step[present], whole.norm[present], minlength=n)
    return np.asarray(total / np.maximum(np.bincount(whole.step[present], minlength=n), 1))


def _rounding(e: Evidence, whole: Whole) -> Floats:
    """Return how far below 0 rounding can put the cosine of each row.

    A least-norm point d of rows v is exact to `_RESIDUAL` max ‖v‖², so v·d / ‖v‖‖d‖ to that over ‖v‖‖d‖.
    """
    n = int(whole.step.max(initial=0)) + 1
    longest, length = np.zeros(n), np.zeros(n)
    np.maximum.at(longest, whole.step, whole.norm)
    total = np.bincount(whole.step, np.abs(whole.weight), minlength=n)
    if e.algorithm.then is None:
        taken = slice(min(n, len(e.steps)))
        length[taken] = np.nan_to_num(e.steps["direction_norm"][taken] / e.steps["step_length"][taken])
    else:  # the step differs from the direction, whose norm follows from the rows if layers have equal weights
        along = np.nan_to_num(whole.weight * whole.cosine * whole.norm)
        np.add.at(length, whole.step, along)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = longest * total / np.maximum(length, 0.0)
        relative = longest[whole.step] / whole.norm
        slack: Floats = ORTHOGONAL + np.nan_to_num(_RESIDUAL * relative * scale[whole.step], nan=np.inf)
    return slack
