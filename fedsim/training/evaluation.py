"""Evaluating everybody in one pass: how the rows of a split are cut into ranges, and put together client by client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.data.federated_data import Split

EVAL_ROWS = 2048
"""Samples per forward pass in evaluation. Fixed, so that no result depends on how the work was divided."""


SCORED_ROWS = 8 * EVAL_ROWS
"""Samples whose losses and hits are found together: of small models the calls take longer than the arithmetic."""
_KEPT_BYTES = 2**24
"""Most bytes of samples that stay gathered from one evaluation to the next."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Per-client results on one split, for the clients that hold samples of it; arrays of equal length."""

    clients: NDArray[np.int64]
    n: NDArray[np.int64]
    correct: NDArray[np.int64]
    loss: NDArray[np.float64]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Fractions; NaN where the loss is: logits that are no numbers have no largest one."""
        return np.where(np.isnan(self.loss), np.nan, self.correct / self.n)


class Samples:
    """The samples of a range of a split in the order of its rows, kept for the next evaluation of the same range.

    Small models take as long to gather their samples as to compute their logits. What takes more than 16 MiB is
    gathered batch by batch, and not kept.
    """

    def __init__(self) -> None:
        self._range: tuple[str, int, int] | None = None
        self._kept = torch.empty(0)

    def batches(
        self, x: torch.Tensor, rows: torch.Tensor, of: tuple[str, int, int] | None = None
    ) -> Iterable[torch.Tensor]:
        """Return the samples `x[rows]`, [EVAL_ROWS, ...] at a time.

        of: the split and the range of its entries that `rows` [N] are; None if they are not to be kept.
        """
        if of is None or len(rows) * x[:1].nbytes > _KEPT_BYTES:
            return (x.index_select(0, part) for part in torch.split(rows, EVAL_ROWS))
        if self._range != of:
            self._range, self._kept = of, x.index_select(0, rows)
        return torch.split(self._kept, EVAL_ROWS)


def chunks_of(split: Split, pieces: int) -> list[tuple[int, int]]:
    """Cut a split's rows into at most `pieces` ranges whose ends are multiples of the evaluation batch."""
    total = len(split.indices)
    batches = math.ceil(total / EVAL_ROWS)
    step = max(1, math.ceil(batches / pieces)) * EVAL_ROWS
    return [(a, min(a + step, total)) for a in range(0, total, step)]


def per_client(split: Split, parts: Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> Evaluation:
    """Add up per-sample results, in the order of the split's rows, client by client."""
    sizes = split.sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)
    losses = np.concatenate([p[0] for p in parts]) if parts else np.zeros(0)
    correct = np.concatenate([p[1] for p in parts]) if parts else np.zeros(0, dtype=bool)
    holders = np.flatnonzero(sizes)
    sums = np.bincount(owner, weights=losses, minlength=len(sizes))[holders]
    hits = np.bincount(owner[correct], minlength=len(sizes))[holders]
    return Evaluation(holders, sizes[holders], hits, sums / sizes[holders])
