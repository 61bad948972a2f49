"""Krum and Multi-Krum: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent".

With m updates, f of them hostile, and δ_ij = ‖g_i - g_j‖², the score of an update is the sum of the m - f - 2 smallest
δ_ij, j ≠ i. Krum steps by the update with the smallest score, Multi-Krum by the plain mean of the q updates with the
smallest scores. Distances come from the Gram matrix: δ_ij = G_ii + G_jj - 2 G_ij.

Deviations and choices:
- The paper asks for m ≥ 2f + 3. A step may have fewer updates, after losses or with buffered pacing: it then assumes
  the largest f that its m admits, ⌊(m - 3) / 2⌋, at least 0. The diagnostic `attackers` is the f of the step.
- Of equal scores that of the smallest client number comes first, as in the paper; equal updates of one client keep
  their order. With two updates neither has a neighbour to be compared with, and the smaller client number decides.
- `keep = "honest"` keeps m - f updates, as many as are taken to be honest. A number above m keeps all. The diagnostic
  `kept` is the q of the step.
- Public code of EPFL asks for m ≥ 2f + 2, squares the distances twice and adds the kept updates up; not followed.
- δ_ij is a difference of larger numbers. Below 1e-12 of the longer update's square it counts as 0; with float32
  updates, distances below some 3e-4 of their norms are rounding.
- Updates count equally, whatever the clients' numbers of samples. With the wrapper `with_absent`, updates of absent
  clients count too, and f is a number of clients: an attacker's update stays.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import squared_distances
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def krum(
    *,
    attackers: Annotated[int, Field(ge=0)] | None = None,
    keep: Annotated[int, Field(ge=1)] | Literal["honest"] = 1,
) -> Algorithm:
    """Average the `keep` updates that are closest to their neighbours, with up to `attackers` hostile ones among all.

    Args:
        attackers: f, the number of hostile updates to withstand. A step takes at most the f that its m updates admit,
            ⌊(m - 3) / 2⌋ but at least 0; without the option it takes that number.
        keep: q, how many updates of smallest score are averaged: 1 is Krum, more are Multi-Krum, and a number above m
            keeps all; "honest" keeps m - f.
    """

    def weigh(stack: Stack) -> Direction:
        m = stack.m
        most = max((m - 3) // 2, 0)
        f = most if attackers is None else min(attackers, most)
        score = scores(squared_distances(stack.gram()[:m, :m]), m - f - 2)
        best = np.lexsort((stack.clients[:m], score))
        kept = best[: m - f if keep == "honest" else keep]
        weights = np.zeros(stack.n)
        weights[kept] = 1 / len(kept)
        return Direction(weights, diagnostics={"attackers": float(f), "kept": float(len(kept))})

    return stateless(weigh, Needs(gram="model"), ["convex"])


def scores(distances: Floats, neighbours: int) -> Floats:
    """Return for each row the sum `[m]` of its `neighbours` smallest squared distances [m, m] to other rows."""
    others = distances + np.diag(np.full(len(distances), np.inf))
    return np.asarray(np.sort(others, axis=1)[:, : max(neighbours, 0)].sum(axis=1))
