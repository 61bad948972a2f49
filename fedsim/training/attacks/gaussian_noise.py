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

    Args:
        sigma: the size of the noise; `per` says what it measures.
        per: what sigma measures: "norm", the noise relative to the update: an entry has the standard deviation sigma
            ‖Δ‖ / √P, so that the norm of the noise is close to sigma ‖Δ‖; "entry", the standard deviation of an entry.
        replace: whether the noise is sent in place of the update, not added to it.
    """

    def send(message: Message) -> Message:
        row = message.row
        spread = sigma if per == "entry" else sigma * float(row.double().norm()) / len(row) ** 0.5
        noise = torch.from_numpy(message.draws.standard_normal(len(row), dtype=np.float32)).to(row.device)
        return message.with_row(noise * spread if replace else row + noise * spread)

    return Attack(send=send)
