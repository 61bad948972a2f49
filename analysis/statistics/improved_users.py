"""The share of clients whose loss did not rise between two models."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedsim.common import arguments


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
