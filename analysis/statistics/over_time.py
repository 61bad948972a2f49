"""What the time between evaluations was like for clients: how long below a threshold, and who was made worse."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.opening.arrays import Floats, Ints
from fedsim.analysis.opening.run import Evaluation, Run
from fedsim.analysis.statistics.improved_users import improved_users_percent
from fedsim.common import arguments

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def time_below(run: Run, threshold_percent: float, split: str | None = None) -> pd.DataFrame:
    """Return for each client how long its accuracy was below a threshold, one row per client of the last evaluation.

    An accuracy holds until the client's next evaluation, the last one until the run's end. `below_share`: the share of
    the virtual time since its first evaluation; NaN if none passed. `reached_us`: when an evaluation first found it at
    the threshold or above; -1 if none did. Raises RunError if the run was not evaluated.
    """
    import pandas as pd  # half a second, not needed before

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

    `step`, `time_us`, `since_last_percent` (against the evaluation before) and `since_start_percent` (against the
    first), see `improved_users_percent`; clients that only one of the two evaluated are left out.
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


def _improved(before: Evaluation, now: Evaluation) -> float:
    _, ours, theirs = np.intersect1d(before.client, now.client, return_indices=True)
    return improved_users_percent(before.loss[ours], now.loss[theirs])


def _accuracies(each: Evaluation, who: Ints) -> Floats:
    """Return [k] the accuracies of some clients, NaN for those that were not evaluated."""
    at = np.searchsorted(each.client, who).clip(max=len(each.client) - 1)
    return np.where(each.client[at] == who, each.accuracy[at], np.nan)
