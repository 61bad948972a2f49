"""A free rider: it receives the model and sends an update of zeros (Lin et al. 2019)."""

from __future__ import annotations

import torch

from fedsim.training.attack import Attack


def zero() -> Attack:
    """Send an update of zeros, which counts in the step; see `drop` for updates that never arrive."""
    return Attack(send=lambda message: message.with_row(torch.zeros_like(message.row)))
