"""Evaluation of all clients in one pass: cuts the samples of a split into ranges, and adds results up by client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.data.federated_data import Split

EVAL_ROWS = 2048
"""Samples per forward pass in evaluation. Fixed, so that no result depends on how the work is divided."""
SCORED_ROWS = 8 * EVAL_ROWS
"""Samples whose losses and hits are computed together, because small models spend most of the time in calls."""
_KEPT_BYTES = 2**24
"""Most bytes of gathered samples that are kept for the next evaluation."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Per-client results on one split: arrays of equal length, one entry per client with samples in the split."""

    clients: NDArray[np.int64]
    n: NDArray[np.int64]
    correct: NDArray[np.int64]
    loss: NDArray[np.float64]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Fractions from 0 to 1; NaN where the loss is NaN, since NaN logits have no largest class."""
        return np.where(np.isnan(self.loss), np.nan, self.correct / self.n)


class Samples:
    """Gathers the samples of a range of a split, and keeps them for the next evaluation of the same range.

    With small models gathering takes as long as the forward pass. Ranges of more than 16 MiB are gathered batch by
    batch and not kept.
    """

    def __init__(self) -> None:
        self._range: tuple[str, int, int] | None = None
        self._kept = torch.empty(0)

    def batches(self, x: Tensor, rows: Tensor, of: tuple[str, int, int] | None = None) -> Iterable[Tensor]:
        """Return the samples `x[rows]`, [EVAL_ROWS, ...] at a time.

        Args:
            x: all samples [N, ...].
            rows: positions [n] of the samples to return.
            of: the name of the split, and the start and stop of its entries that `rows` are; None to keep nothing.
        """
        if of is None or len(rows) * x[:1].nbytes > _KEPT_BYTES:
            return (x.index_select(0, part) for part in torch.split(rows, EVAL_ROWS))
        if self._range != of:
            self._range, self._kept = of, x.index_select(0, rows)
        return torch.split(self._kept, EVAL_ROWS)


def chunks_of(split: Split, pieces: int) -> list[tuple[int, int]]:
    """Cut a split's rows into at most `pieces` ranges whose ends are multiples of the evaluation batch."""
    total = len(split.indices)
    step = max(1, -(-total // (EVAL_ROWS * pieces))) * EVAL_ROWS
    return [(a, min(a + step, total)) for a in range(0, total, step)]


def per_client(split: Split, parts: Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> Evaluation:
    """Add up per-sample losses and hits by client; `parts` follow the order of the split's entries."""
    sizes = split.sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)
    losses = np.concatenate([p[0] for p in parts]) if parts else np.zeros(0)
    correct = np.concatenate([p[1] for p in parts]) if parts else np.zeros(0, dtype=bool)
    holders = np.flatnonzero(sizes)
    sums = np.bincount(owner, weights=losses, minlength=len(sizes))[holders]
    hits = np.bincount(owner[correct], minlength=len(sizes))[holders]
    return Evaluation(holders, sizes[holders], hits, sums / sizes[holders])
