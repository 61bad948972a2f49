"""How precisely clients compute. Parameters, updates and whatever the server makes of them are float32 in any case.

In `bfloat16`, as in mixed-precision training, products and convolutions of the forward and backward pass take numbers
with a significand of 8 bits and give such numbers, which take half the memory and, on processors with units for them,
a fraction of the time; the loss and the step are float32. In `tf32` a GPU rounds what it multiplies to 11 bits and adds
up in float32. Evaluation is as precise as float32 is, whatever clients do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]


def lowered(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Let torch choose bfloat16 for operations of a forward pass where the precision says so; so may be what comes out.

    To be entered anew for each pass: parameters that are cast are kept until the end, and they change.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


@contextmanager
def rounding(precision: Precision, device: torch.device) -> Iterator[None]:
    """Say whether a GPU may round what it multiplies to TF32: torch by default does so in convolutions alone."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
