"""FedLF: Pan et al. 2024, "FedLF: Layer-Wise Fair Federated Learning" (AAAI), Eq. 5-8.

In each block of parameters the step is the least-norm point of the hull of the clients' gradients, the
gradient g_P of P(w) = -cos(1, F(w)) (Eq. 5, "fair row") and the last gradients of clients absent for at most
τ = M/m steps, M the number of clients seen before. A block whose point is zero joins the next one. The whole
gets the mean's norm.

`lengths` says how long the points of a block's hull are. "equal": each fragment, and the fragment of g_P, is
scaled to the mean norm of the present fragments. A positive factor changes no sign, so every inequality of the
paper still holds, for the fragments as they were received too. "raw": the paper's text. There the shortest
fragment bounds the length of the least-norm point, and the final rescaling stretches the step without limit:
a client that fits its samples decides the step of all.

The ablations of its Table 3, each also an option of its own:

| `ablation` | what is different | the same as |
|---|---|---|
| `M1` | the plain mean instead of the least-norm point | `fedavg`, `weighting="uniform"` |
| `M2` | one block, the whole model | `level="model"` |
| `M3` | blocks are equal slices of the parameters, as many as layers | `level="slices"` |
| `M4` | no fair row | `fair_row=False` |
| `M5` | FedMDFG's fair row, weights of norm 1 | `fairness="unit"` |
| `M6` | no absent clients | `absent="none"` |
| `M7` | absent clients of the previous step only | `absent="previous"` |
| `M8` | all absent clients ever seen | `absent="all"` |

Deviations and choices:
- The paper's direction has the opposite sign. Updates Δ stand for gradients, as Δ = η g for one full-batch
  step.
- Zero means a norm of at most `zero_tolerance` times the weighted sum of the rows' norms (the paper gives no
  tolerance). The lowest zero block joins the next, the last one the block before it, one at a time.
- With equal losses, one client or zero losses, g_P = 0 and there is no fair row. Zero fragments (with raw
  lengths, updates that are zero as a whole) are left out: a zero point
  in the hull would stop every step. Zero is a norm of at most
  `zero_tolerance` times the mean norm of the present ones: a client that fits its samples sends little but
  the rounding of float32.
- `form="released"` is the authors' public code: lengths are equal, but g_P is made of the rescaled fragments,
  nothing is merged, and a direction that conflicts at model level is halved while it is over twice as long as
  before the final rescaling. The code fails on zero fragments: here they are left out.
- A block is what the stack holds: a module (weight and bias) as in the paper; the released code splits these
  too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.mathematics.blocks import Part, solved, table_of
from fedsim.algorithms.mathematics.geometry import (
    as_long_as_mean,
    fair_weights,
    inverse_norms,
    mean_of_present,
    of_length,
    shortened,
    unit_fair_weights,
)
from fedsim.algorithms.mathematics.hull import Hull
from fedsim.algorithms.mathematics.min_norm import Solver
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Floats, GramLevel, Needs, Stack, stateless

Absent = Literal["window", "none", "previous", "all"]
Ablation = Literal["none", "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8"]
Rows = NDArray[np.intp]

_ABLATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "M1": {"mean": True},
    "M2": {"level": "model"},
    "M3": {"level": "slices"},
    "M4": {"fairness": "none"},
    "M5": {"fairness": "unit"},
    "M6": {"absent": "none"},
    "M7": {"absent": "previous"},
    "M8": {"absent": "all"},
}
_MEMORY = {"window": math.inf, "none": 0, "previous": 1, "all": math.inf}


@dataclass(frozen=True, slots=True)
class _Variant:
    form: str
    lengths: str
    level: str
    fairness: str
    merging: bool
    absent: str
    zero_tolerance: float
    solver: Solver
    mean: bool = False

    def needs(self) -> Needs:
        if self.mean:
            return Needs()
        level: GramLevel = "model" if self.level == "model" else "blocks"
        memory = _MEMORY[self.absent]
        return Needs(level, self.fairness != "none", memory, slices=self.level == "slices")

    def fair(self, stack: Stack) -> Floats:
        """Return the weights `[n]` of the fair row; zeros if there is none."""
        weights = np.zeros(stack.n)
        if self.fairness != "none":
            of = fair_weights if self.fairness == "gradient" else unit_fair_weights
            weights[: stack.m] = of(stack.losses[: stack.m])
        return weights

    @property
    def negligible(self) -> float:
        """The norm of what counts as a zero row or fragment, over the mean norm of the present ones."""
        return self.zero_tolerance if self.form == "paper" else 0.0

    def considered(self, stack: Stack) -> Rows:
        """Return the rows of the hull: the present ones and the absent ones young enough, without zero rows.

        With equal lengths, zeros are told apart fragment by fragment, in each block.
        """
        window = stack.n_seen / stack.m if stack.n_seen > stack.m else 0.0
        oldest = {"window": window, "none": 0.0, "previous": 1.0, "all": math.inf}[self.absent]
        rows = np.flatnonzero(stack.ages <= oldest)
        return rows if self.lengths == "equal" else _longer(stack.gram(), rows, stack.m, self.negligible)

    def hull(self, gram: Floats, rows: Rows, fair: Floats, m: int) -> Hull:
        """Return the hull of a block with inner products `gram` `[n, n]`."""
        if self.lengths == "raw":
            return Hull(rows, np.ones(len(gram)), fair)
        length = np.sqrt(gram.diagonal()[:m]).mean()
        scale = inverse_norms(gram) * length
        q = fair * scale if self.form == "released" else fair
        return Hull(_longer(gram, rows, m, self.negligible), scale, _of_length(q, gram, length))


def fedlf(
    *,
    form: Literal["paper", "released"] = "paper",
    lengths: Literal["equal", "raw"] = "equal",
    level: Literal["layers", "slices", "model"] = "layers",
    fair_row: bool = True,
    fairness: Annotated[
        Literal["gradient", "unit"], With("fair_row", True), With("lengths", "raw")
    ] = "gradient",
    merging: Annotated[bool, With("form", "paper")] = True,
    absent: Absent = "window",
    ablation: Ablation = "none",
    zero_tolerance: Annotated[float, Field(ge=0, lt=1), With("form", "paper")] = 1e-4,
    solver: Solver = "direct",
) -> Algorithm:
    """Descend for every client in every layer, and towards equal losses.

    `merging` and `zero_tolerance` matter in the paper's form only; the released one never merges, and its
    lengths are equal. `fairness` is the scale of the fair row's weights, Eq. 5's or norm 1, which needs raw
    lengths, as `ablation="M5"` does. `ablation` overrides the option it stands for.
    """
    if form == "released" and lengths == "raw":
        raise ConfigError(
            'form = "released" scales fragments to equal lengths: expected lengths = "equal", found "raw"'
        )
    if lengths == "equal" and (fairness == "unit" or ablation == "M5"):
        option = 'ablation = "M5"' if ablation == "M5" else 'fairness = "unit"'
        raise ConfigError(f'{option} changes the length of the fair row, which needs lengths = "raw"')
    merging = merging and form == "paper"
    kind = fairness if fair_row else "none"
    variant = _Variant(form, lengths, level, kind, merging, absent, zero_tolerance, solver)
    variant = replace(variant, **_ABLATIONS[ablation])

    def direction(stack: Stack) -> Direction:
        return Direction(mean_of_present(stack.n, stack.m)) if variant.mean else _direction(stack, variant)

    rule = stateless(direction, variant.needs(), ["convex"] if variant.mean else ["descent"])
    return replace(rule, negligible=variant.negligible)


def _direction(stack: Stack, variant: _Variant) -> Direction:
    grams = stack.gram()[None] if variant.level == "model" else stack.grams
    rows, fair = variant.considered(stack), variant.fair(stack)

    def solve(gram: Floats, first: int, width: int) -> Part:
        weights, residual = variant.hull(gram, rows, fair, stack.m).least(gram, variant.solver)
        return Part(gram, weights, first, width, residual)

    parts = solved(grams, solve, merging=variant.merging, tolerance=variant.zero_tolerance)
    weights = table_of(parts)
    scaled = as_long_as_mean(weights, grams, stack.m)
    if variant.form == "released":
        scaled = shortened(scaled, weights, grams, rows)
    kkt_residual = max(part.residual for part in parts)
    return Direction(scaled, diagnostics={"kkt_residual": kkt_residual, "blocks": float(len(parts))})


def _longer(gram: Floats, rows: Rows, m: int, share: float) -> Rows:
    """Return those of `rows` that are longer than a share of the mean norm of the first `m`, and not zero."""
    norms = np.sqrt(gram.diagonal())
    longer: Rows = rows[norms[rows] > share * norms[:m].mean()]
    return longer


def _of_length(q: Floats, gram: Floats, length: float) -> Floats:
    """Return the weights of the mixture `q` `[n]` stretched to `length`; zeros if its norm is rounding."""
    largest = np.abs(q).max()
    return of_length(q[None] / largest, gram[None], length)[0] if largest > 0 else q
