"""Multinomial logistic regression, the model of the convex experiments of q-FFL (Li et al., 2020)."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def softmax(
    *,
    in_shape: tuple[int, ...],
    n_classes: int,
    bias: bool = True,
    zero_init: bool = False,
    doubled_softmax: bool = False,
) -> nn.Module:
    """One linear layer over the flattened sample.

    Args:
        bias: whether the layer has a bias for each class.
        zero_init: start from zeros, the usual choice for a convex problem, and not as `torch.nn.Linear` does.
        doubled_softmax: end with a softmax, whose outputs the cross-entropy takes for logits, as in FedFV's code.
    """
    from torch import nn  # slow to import, and not needed to read a configuration that names this model

    out = nn.Linear(math.prod(in_shape), n_classes, bias=bias)
    if zero_init:
        for parameter in out.parameters():
            nn.init.zeros_(parameter)
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten(), out=out)
    if doubled_softmax:
        layers["softmax"] = nn.Softmax(dim=1)
    return nn.Sequential(layers)
