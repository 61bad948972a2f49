"""Doubled steps without a personal model, which the public code of the FedMDFG and FedLF authors calls Ditto.

On one model, each minibatch gradient g makes two steps, `v <- v - lr g` and then `v <- v - lr (g + lam (v - w))` with
the same g. It reproduces tables of those papers; Ditto itself is `ditto`. That code also adds the updates one by one
with divisor K, as `fedavg` does with `weighting="sequential"`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.training.client_method import ClientMethod


def ditto_global(*, lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1) -> ClientMethod:
    """Step twice with each gradient, the second time with a pull of strength lam towards the received model.

    Args:
        lam: the strength λ of that pull, lam (v - w); 0 makes the second step a plain one too.
    """
    return ClientMethod(proximal=lam, plain_step_first=True)
