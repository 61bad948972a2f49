"""The bias attack of FedMGDA+ (Hu et al. 2022): a constant on the loss, which its gradient does not see."""

from __future__ import annotations

from fedsim.training.attack import Attack


def loss_bias(*, bias: float = 1.0) -> Attack:
    """Add a constant to each loss that is reported; the update is honest."""
    return Attack(send=lambda message: message.with_losses(lambda loss: loss + bias))
