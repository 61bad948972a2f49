"""Cross-entropy and correctness of samples from their logits.

Logits are [classes, N] here, so that the softmax over few classes runs along the samples, which is much faster.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional


def losses_of(across: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy [..., N] of samples with logits [..., classes, N] and labels [..., N]."""
    own = labels.unsqueeze(-2)
    return functional.log_softmax(across, dim=-2).gather(-2, own).squeeze(-2).neg_()


def correct_of(across: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return [N] whether the label is the first class with the largest logit; logits are [classes, N]."""
    own, largest = labels[None], across.amax(dim=0)
    correct = across.gather(0, own)[0] == largest
    if across.is_cuda:
        n_largest = int(torch.count_nonzero(across == largest))
    else:  # NumPy is faster than torch here
        n_largest = int(np.count_nonzero(across.numpy() == largest.numpy()))
    if n_largest != len(labels):  # rare: equal logits, or NaN
        before = torch.arange(len(across), device=across.device)[:, None] < own
        correct &= ~((across == largest) & before).any(dim=0)
    return correct
