"""A free rider: it takes the model and sends nothing new (Lin et al. 2019)."""

from __future__ import annotations

import torch

from fedsim.training.attack import Attack


def zero() -> Attack:
    """Send a row of zeros, which takes its place in the step; see `drop` for updates that never arrive."""
    return Attack(send=lambda message: message.with_row(torch.zeros_like(message.row)))
