"""The bias attack of FedMGDA+ (Hu et al. 2022): a constant added to the loss, which leaves the gradient unchanged."""

from __future__ import annotations

from fedsim.training.attack import Attack


def loss_bias(*, bias: float = 1.0) -> Attack:
    """Add `bias` to each reported loss; the update is honest.

    Args:
        bias: the constant that is added, in units of the loss; it may be negative.
    """
    return Attack(send=lambda message: message.with_losses(lambda loss: loss + bias))
