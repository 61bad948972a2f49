"""A multilayer perceptron; 784-200-200-10 is the Fashion-MNIST model of FedMDFG and FedLF."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from torch import nn

Width = Annotated[int, Field(ge=1)]


def mlp(
    *,
    in_shape: tuple[int, ...],
    n_classes: int,
    hidden: Sequence[Width] = (200, 200),
    doubled_softmax: bool = False,
) -> nn.Module:
    """Linear layers with ReLU between them, over the flattened sample.

    Args:
        hidden: width of each hidden layer; empty for logistic regression.
        doubled_softmax: end with a softmax, whose outputs the cross-entropy takes for logits, as in FedFV's code.
    """
    from torch import nn  # slow to import, and not needed to read a configuration that names this model

    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    widths = [math.prod(in_shape), *hidden]
    for number, (before, after) in enumerate(pairwise(widths), start=1):
        layers[f"fc{number}"] = nn.Linear(before, after)
        layers[f"relu{number}"] = nn.ReLU()
    layers["out"] = nn.Linear(widths[-1], n_classes)
    if doubled_softmax:
        layers["softmax"] = nn.Softmax(dim=1)
    return nn.Sequential(layers)
