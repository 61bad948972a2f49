"""Convolutions, then dense layers; by default the MNIST network of FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With

Width = Annotated[int, Field(ge=1)]
Chance = Annotated[float, Field(ge=0, lt=1)]
Norm = Literal["none", "group", "response"]
Layer = tuple[str, nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class CnnOptions:
    """Options of `cnn`."""

    channels: Sequence[Width] = (32, 64)
    """Output channels of each convolution."""
    kernel: Width = 5
    """Side of the kernels."""
    padding: Literal["same", "valid"] = "same"
    """ "same" keeps the side of the image (odd kernels only), "valid" shortens it by `kernel` - 1."""
    pool: Literal["each", "last"] = "each"
    """Whether pooling, which halves the image and rounds down, follows each convolution or the last one only."""
    relu: bool = True
    """Whether ReLU follows convolutions."""
    norm: Norm = "none"
    """ "group" puts a GroupNorm after each convolution, "response" normalises over two neighbouring channels, after
    pooling in the first block and before it in the others."""
    groups: Annotated[Width, With("norm", "group")] = 8
    """A GroupNorm has as many groups as divide both this number and its channels."""
    hidden: Sequence[Width] = (512,)
    """Widths of the dense layers."""
    channel_dropout: Chance = 0.0
    """Chance that a channel of the last convolution is dropped."""
    dropout: Sequence[Chance] = ()
    """Chances that an input of the first, second, ... linear layer is dropped."""
    doubled_softmax: bool = False
    """End with a softmax, whose outputs the cross-entropy takes for logits, as in FedFV's code."""


def cnn(in_shape: tuple[int, ...], n_classes: int, options: CnnOptions) -> nn.Module:
    """Blocks of convolution, normalisation, ReLU and 2x2 max-pooling, then linear layers with ReLU.

    Raises ConfigError when samples are not [channels, height, width], the image shrinks to nothing, or there are more
    chances of dropout than linear layers.
    """
    o = options
    _check(in_shape, o)
    pad = o.kernel // 2 if o.padding == "same" else 0
    sides, layers = [in_shape[1], in_shape[2]], OrderedDict[str, nn.Module]()
    for number, (before, after) in enumerate(pairwise([in_shape[0], *o.channels]), start=1):
        pooled = o.pool == "each" or number == len(o.channels)
        sides = [(side + 2 * pad - o.kernel + 1) // (2 if pooled else 1) for side in sides]
        if min(sides) < 1:
            raise ConfigError(_too_small(in_shape, number, o))
        layers[f"conv{number}"] = nn.Conv2d(before, after, o.kernel, padding=pad)
        layers.update(_after(number, after, o, pooled))
    if o.channels and o.channel_dropout:
        layers["channel_dropout"] = nn.Dropout2d(o.channel_dropout)
    features = [in_shape[0], *o.channels][-1] * math.prod(sides)
    layers.update(_dense([features, *o.hidden], n_classes, o.dropout))
    if o.doubled_softmax:
        layers["softmax"] = nn.Softmax(dim=1)
    return nn.Sequential(layers)


def _after(number: int, width: int, o: CnnOptions, pooled: bool) -> Iterator[Layer]:
    """Yield the layers after a convolution."""
    if o.norm == "group":
        yield f"norm{number}", nn.GroupNorm(math.gcd(o.groups, width), width)
    if o.relu:
        yield f"relu_conv{number}", nn.ReLU()
    if o.norm == "response" and number > 1:
        yield f"norm{number}", nn.LocalResponseNorm(2)
    if pooled:
        yield f"pool{number}", nn.MaxPool2d(2)
    if o.norm == "response" and number == 1:
        yield f"norm{number}", nn.LocalResponseNorm(2)


def _dense(widths: list[int], n_classes: int, dropout: Sequence[float]) -> Iterator[Layer]:
    yield "flatten", nn.Flatten()
    for number, (width, chance) in enumerate(zip_longest(widths, dropout, fillvalue=0), start=1):
        if chance:
            yield f"dropout{number}", nn.Dropout(chance)
        if number == len(widths):
            yield "out", nn.Linear(width, n_classes)
        else:
            yield f"fc{number}", nn.Linear(width, widths[number])
            yield f"relu_fc{number}", nn.ReLU()


def _check(in_shape: tuple[int, ...], o: CnnOptions) -> None:
    if len(in_shape) != 3:
        raise ConfigError(
            f"model 'cnn' needs images [channels, height, width]; this task has samples of shape {in_shape}"
        )
    if o.padding == "same" and o.kernel % 2 == 0:
        raise ConfigError(f"model 'cnn': padding 'same' needs an odd kernel, found kernel = {o.kernel}")
    chances, linear = len(o.dropout), len(o.hidden) + 1
    if chances > linear:
        raise ConfigError(f"model 'cnn': {chances} chances of dropout for {linear} linear layers")


def _too_small(in_shape: tuple[int, ...], number: int, o: CnnOptions) -> str:
    return (
        f"model 'cnn': an image of {in_shape[1]}x{in_shape[2]} is used up at convolution {number} "
        f"(kernel {o.kernel}, padding {o.padding!r}, then pooling by 2); use fewer entries of channels, "
        "a smaller kernel, or padding 'same'"
    )
