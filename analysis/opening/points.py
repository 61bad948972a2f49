"""Which evaluations of runs are compared: those after equal steps, time or bytes, and on the same clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.opening.evaluation import Evaluation, on_common_clients

if TYPE_CHECKING:
    import pandas as pd

_ENOUGH = 0.5
"""An exactly shared point is used if it lies beyond this share of the range that all runs reached."""


def same_point(numbers: Sequence[pd.DataFrame], column: str, past_us: int) -> list[int]:
    """Return the index of the evaluation of each run to compare; see `Study.frame`.

    `numbers` are the runs' positions, of which `column` is to be equal. What forks and their parents share until
    `past_us` tells nothing of the difference.
    """
    values = [np.asarray(n[column], dtype=np.int64) for n in numbers]
    reach = min(int(v[-1]) for v in values)
    later = [v[np.asarray(n["time_us"]) > past_us].tolist() for v, n in zip(values, numbers, strict=True)]
    shared = set(later[0]).intersection(*later[1:])
    best = max((v for v in shared if v <= reach), default=-1)
    limit = best if best >= _ENOUGH * reach else reach
    return [max(int(np.searchsorted(v, limit, side="right")) - 1, 0) for v in values]


def same_clients(
    windows: Sequence[Sequence[Evaluation]], ends: Sequence[Evaluation]
) -> list[Sequence[Evaluation]] | None:
    """Return the evaluations of runs on the clients that all of them have; None if they have none in common.

    Runs whose last evaluations, `ends`, have different clients are of different data: then those of each run alone.
    """
    if not all(np.array_equal(end.client, ends[0].client) for end in ends):
        return [on_common_clients(window) for window in windows]
    together = iter(on_common_clients([evaluation for window in windows for evaluation in window]))
    found = [[next(together) for _ in window] for window in windows]
    return None if len(ends[0].client) and not len(found[0][0].client) else list(found)
