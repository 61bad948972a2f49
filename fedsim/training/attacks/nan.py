"""Updates with NaN or infinite entries, as broken devices send them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from fedsim.training.attack import Attack, Message


def nan(*, value: Literal["nan", "inf"] = "nan", entries: Annotated[int, Field(ge=1)] = 1) -> Attack:
    """Put NaN or infinity into the first `entries` of the update. `[bad_updates]` decides what the server does.

    Args:
        value: what the entries become: "nan", not a number; "inf", infinity.
        entries: how many entries of the update are replaced, from the first on; at most all.
    """

    def send(message: Message) -> Message:
        row: torch.Tensor = message.row.clone()
        row[:entries] = float(value)
        return message.with_row(row)

    return Attack(send=send)
