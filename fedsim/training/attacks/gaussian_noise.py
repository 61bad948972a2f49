"""Gaussian noise added to updates, or sent in their place."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from fedsim.training.attack import Attack, Message


def gaussian_noise(
    *,
    sigma: Annotated[float, Field(ge=0)] = 1.0,
    per: Literal["norm", "entry"] = "norm",
    replace: bool = False,
) -> Attack:
    """Add Gaussian noise to the update Δ [P], or with `replace` send the noise alone.

    The standard deviation of an entry is `sigma` with `per = "entry"`. With `per = "norm"` it is sigma ‖Δ‖ / √P, so
    that the norm of the noise is close to sigma ‖Δ‖.
    """

    def send(message: Message) -> Message:
        row = message.row
        spread = sigma if per == "entry" else sigma * float(row.double().norm()) / len(row) ** 0.5
        noise = torch.from_numpy(message.draws.standard_normal(len(row), dtype=np.float32)).to(row.device)
        return message.with_row(noise * spread if replace else row + noise * spread)

    return Attack(send=send)
