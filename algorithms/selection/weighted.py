"""Sampling in proportion to data size (q-FFL, Li et al. 2020; FedFV, Wang et al. 2021).

Clients are drawn one after another, each with probability n_i / Σ n_j over the candidates not drawn yet, as q-FFL's
code does. Its text draws independently, as `replacement` does. A client cannot do two jobs at once, so a client drawn
twice gets one job, and fewer than `k` clients may be chosen. A client without samples is drawn when no others are left,
or never with replacement.

Stated is the inclusion probability where it has a closed form: with replacement 1 - (1 - p)^k with p = n_i / Σ n_j;
without, p for one place, and k / c if all c candidates have as many samples. Else it is unknown (NaN): for draws one
after another it is a sum over all orders of the k clients.

Known to the server: data sizes.
"""

from __future__ import annotations

import numpy as np

from fedsim.algorithms.selection.parts.draws import proportional
from fedsim.engine.selector import Choice, Floats, Selector, View, stateless


def weighted(*, replacement: bool = False) -> Selector:
    """Choose clients at random with probability proportional to their number of training samples.

    Args:
        replacement: draw `k` times from all candidates and count those drawn several times once, as in q-FFL's text;
            otherwise draw one after another without replacement, as in its code.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        sizes = view.n_samples[view.candidates].astype(np.float64)
        if not replacement or not sizes.any():
            chosen = proportional(view.candidates, sizes, k, rng)
            return Choice(chosen, _one_after_another(sizes, k)[np.searchsorted(view.candidates, chosen)])
        share = sizes / sizes.sum()
        drawn = rng.choice(view.candidates, size=k, p=share)
        _, first = np.unique(drawn, return_index=True)
        once = drawn[np.sort(first)]
        return Choice(once, 1 - (1 - share[np.searchsorted(view.candidates, once)]) ** k)

    return stateless(select)


def _one_after_another(sizes: Floats, k: int) -> Floats:
    """Return [c] the probability that each candidate is among `k` draws without replacement; NaN without a formula.

    Candidates without samples share the places that the others leave.
    """
    some = sizes > 0
    n_some, n_none = int(some.sum()), int((~some).sum())
    if k >= n_some:
        return np.where(some, 1.0, (k - n_some) / max(n_none, 1))
    if k == 1:
        return np.asarray(sizes / sizes.sum())
    equal = bool((sizes[some] == sizes[some][0]).all())
    return np.where(some, k / n_some if equal else np.nan, 0.0)
