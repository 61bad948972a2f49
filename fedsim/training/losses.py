"""Cross-entropy and correctness of samples from their logits.

Logits are [classes, N] here, so that the softmax over few classes runs along the samples, which is much faster.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch.nn import functional

Loss = Literal["cross_entropy", "hinge"]
"""A loss of one sample, by the name in `train.loss`."""


def losses_of(loss: Loss, across: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses [..., N] of samples with logits [..., classes, N] and labels [..., N].

    The hinge loss is `max(0, 1 + max_j z_j - z_y)` over the classes j other than the label y (Crammer and Singer 2001).
    With two classes it is the one of a linear SVM whose score is the difference of the logits.
    """
    own = labels.unsqueeze(-2)
    if loss == "hinge":
        # amax would share the gradient among equal rivals.
        rival = across.scatter(-2, own, -torch.inf).max(dim=-2).values
        return torch.relu(1 + rival - across.gather(-2, own).squeeze(-2))
    return functional.log_softmax(across, dim=-2).gather(-2, own).squeeze(-2).neg_()


def training_losses(loss: Loss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the losses [N] of samples with logits [N, classes] and labels [N], differentiable in the logits."""
    if loss == "cross_entropy":
        return functional.cross_entropy(logits, labels, reduction="none")
    return losses_of(loss, logits.transpose(-2, -1), labels)


def correct_of(across: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return [N] whether the label is the first class with the largest logit; logits are [classes, N]."""
    own, largest = labels[None], across.amax(dim=0)
    correct = across.gather(0, own)[0] == largest
    if across.is_cuda:
        n_smaller = int(torch.count_nonzero(across < largest))
    else:  # NumPy is faster than torch here
        n_smaller = int(np.count_nonzero(across.numpy() < largest.numpy()))
    if n_smaller != (len(across) - 1) * len(labels):  # rare: equal logits, or NaN, both of which leave fewer
        before = torch.arange(len(across), device=across.device)[:, None] < own
        correct &= ~((across == largest) & before).any(dim=0)
    return correct
