"""The scaling attack of FedMGDA+ (Hu et al. 2022), and model replacement (Bagdasaryan et al. 2020)."""

from __future__ import annotations

from fedsim.training.attack import Attack, Message


def scale(*, factor: float = 10.0, losses: bool = False) -> Attack:
    """Multiply the update, and with `losses` what is reported of the loss as well.

    A client that multiplies its loss multiplies its gradient: with one local step, `losses` is that attack exactly.
    With more steps the client would train otherwise; here it trains honestly and scales the outcome.
    """

    def send(message: Message) -> Message:
        scaled = message.with_row(message.row * factor)
        return scaled.with_losses(lambda loss: loss * factor) if losses else scaled

    return Attack(send=send)
