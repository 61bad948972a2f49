"""The scaling attack of FedMGDA+ (Hu et al. 2022), and model replacement (Bagdasaryan et al. 2020)."""

from __future__ import annotations

from fedsim.training.attack import Attack, Message


def scale(*, factor: float = 10.0, losses: bool = False) -> Attack:
    """Multiply the update by `factor`, and with `losses` the reported losses too.

    Multiplying a client's loss multiplies its gradient, so with one local step `losses = true` is exactly that attack.
    With more steps a multiplied loss would change the training; here the client trains honestly and scales the result.

    Args:
        factor: the factor on the update; a negative one turns the update around.
        losses: whether the losses that the client reports are multiplied by `factor` too.
    """

    def send(message: Message) -> Message:
        scaled = message.with_row(message.row * factor)
        return scaled.with_losses(lambda loss: loss * factor) if losses else scaled

    return Attack(send=send)
