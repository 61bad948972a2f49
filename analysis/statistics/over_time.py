"""Clients over the evaluations of a run: time below an accuracy, and the share of clients that improved."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def time_below(run: Run, threshold_percent: float, split: str | None = None) -> pd.DataFrame:
    """Return how long each client's accuracy was below a threshold, one row per client of the last evaluation.

    An accuracy holds until the client's next evaluation, the last one until the run's end. Columns: `below_share`, the
    share of the virtual time since the client's first evaluation (NaN if no time passed); `reached_us`, the time of the
    first evaluation at or above the threshold (-1 if there is none). An evaluation whose outputs were not finite counts
    as below. Raises FolderError if the run was not evaluated.
    """
    import pandas as pd  # imported here: opening a run does not need it

    run.final(split)
    evaluations = run.evaluations(split)
    last = evaluations[-1]
    who = last.client[last.n > 0]
    accuracy = np.stack([_accuracies(each, who) for each in evaluations])
    threshold = threshold_percent / 100  # 29 of 100 are 0.29, which times 100 is less than 29
    times = np.array([each.time_us for each in evaluations], dtype=np.int64)
    lengths = np.diff([*times, max(run.virtual_us, times[-1])]).astype(np.float64)[:, None]
    known = np.maximum.accumulate(np.where(np.isnan(accuracy), -1, np.arange(len(times))[:, None]))
    carried = np.where(known >= 0, np.take_along_axis(accuracy, known.clip(0), axis=0), np.nan)
    total = (lengths * (known >= 0)).sum(axis=0)
    below = (lengths * (carried < threshold)).sum(axis=0)
    share = np.divide(below, total, out=np.full(len(who), np.nan), where=total > 0)
    reached = accuracy >= threshold
    first = np.where(reached.any(axis=0), times[reached.argmax(axis=0)], -1)
    return pd.DataFrame({"below_share": share, "reached_us": first}, index=pd.Index(who, name="client"))


@arguments.checked
def improved_over_time(run: Run, split: str | None = None) -> pd.DataFrame:
    """Return one row per evaluation but the first: the share of clients whose loss did not rise, each counting once.

    Columns: `step`, `time_us`, `since_last_percent` (against the previous evaluation) and `since_start_percent`
    (against the first), as in `improved_users_percent`. Clients missing from one of the two are left out.
    """
    import pandas as pd

    evaluations = run.evaluations(split)
    rows = [
        {
            "step": now.step,
            "time_us": now.time_us,
            "since_last_percent": _improved(before, now),
            "since_start_percent": _improved(evaluations[0], now),
        }
        for before, now in pairwise(evaluations)
    ]
    return pd.DataFrame(rows, columns=["step", "time_us", "since_last_percent", "since_start_percent"])


@arguments.checked
def improved_users_percent(loss_before: ArrayLike, loss_after: ArrayLike) -> float:
    """Return the share of clients whose loss did not rise, in percent.

    It is `100 * #{i: f_i(w_after) <= f_i(w_before)} / m`.
    `loss_before` and `loss_after` [m] are losses of the same clients at two models, such as those of two evaluations
    (`Run.evaluations`). Ties count as improved. Clients with NaN in either are left out; the result is NaN if no client
    is left. Raises ValueError if the shapes differ. Source: "percentage of improved users" of FedMGDA+ (Hu et al., IEEE
    TNSE 2022), which uses the training losses of the participants before and after each round.
    """
    before, after = np.asarray(loss_before, dtype=np.float64), np.asarray(loss_after, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(f"expected two arrays of one shape [m], found {before.shape} and {after.shape}")
    known = ~(np.isnan(before) | np.isnan(after))
    return 100 * float((after[known] <= before[known]).mean()) if known.any() else float("nan")


def _improved(before: Evaluation, now: Evaluation) -> float:
    _, ours, theirs = np.intersect1d(before.client, now.client, return_indices=True)
    return improved_users_percent(before.loss[ours], now.loss[theirs])


def _accuracies(each: Evaluation, who: Ints) -> Floats:
    """Return [k] the accuracies of clients `who`: -inf from outputs that are not finite, NaN if not evaluated."""
    at = np.searchsorted(each.client, who).clip(max=len(each.client) - 1)
    evaluated = (each.client[at] == who) & (each.n[at] > 0)
    return np.where(evaluated, np.nan_to_num(each.accuracy[at], nan=-np.inf), np.nan)
