"""Convolutions, then dense layers; by default the MNIST network of FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
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


def cnn(
    *,
    in_shape: tuple[int, ...],
    n_classes: int,
    channels: Sequence[Width] = (32, 64),
    kernel: Width = 5,
    padding: Literal["same", "valid"] = "same",
    pool: Literal["each", "last"] = "each",
    relu: bool = True,
    norm: Norm = "none",
    groups: Annotated[Width, With("norm", "group")] = 8,
    hidden: Sequence[Width] = (512,),
    channel_dropout: Chance = 0.0,
    dropout: Sequence[Chance] = (),
) -> nn.Module:
    """Blocks of convolution, normalisation, ReLU and 2x2 max-pooling, then linear layers with ReLU.

    channels: output channels of each convolution. padding: "same" keeps the side of the image (odd kernels only),
    "valid" shortens it by kernel - 1; pooling halves it, rounding down. pool: after each convolution, or the last one
    only. relu: whether ReLU follows convolutions. norm: "group" puts a GroupNorm after each convolution, with as many
    groups as divide both `groups` and its channels; "response" normalises over two neighbouring channels, after pooling
    in the first block and before it in the others. hidden: widths of the dense layers. channel_dropout: chance that a
    channel of the last convolution is dropped. dropout: chances that an input of the first, second, ... linear layer is
    dropped. Raises ConfigError when samples are not [channels, height, width], the image shrinks to nothing, or there
    are more chances than linear layers.
    """
    _check(in_shape, kernel, padding, len(dropout), len(hidden) + 1)
    pad = kernel // 2 if padding == "same" else 0
    sides, layers = [in_shape[1], in_shape[2]], OrderedDict[str, nn.Module]()
    for number, (before, after) in enumerate(pairwise([in_shape[0], *channels]), start=1):
        pooled = pool == "each" or number == len(channels)
        sides = [(side + 2 * pad - kernel + 1) // (2 if pooled else 1) for side in sides]
        if min(sides) < 1:
            raise ConfigError(_too_small(in_shape, number, kernel, padding))
        layers[f"conv{number}"] = nn.Conv2d(before, after, kernel, padding=pad)
        layers.update(_after(number, after, norm, groups, relu, pooled))
    if channels and channel_dropout:
        layers["channel_dropout"] = nn.Dropout2d(channel_dropout)
    layers.update(_dense([[in_shape[0], *channels][-1] * math.prod(sides), *hidden], n_classes, dropout))
    return nn.Sequential(layers)


def _after(number: int, width: int, norm: Norm, groups: int, relu: bool, pooled: bool) -> Iterator[Layer]:
    """Yield the layers after a convolution; the place of "response" depends on the block (see `cnn`)."""
    if norm == "group":
        yield f"norm{number}", nn.GroupNorm(math.gcd(groups, width), width)
    if relu:
        yield f"relu_conv{number}", nn.ReLU()
    if norm == "response" and number > 1:
        yield f"norm{number}", nn.LocalResponseNorm(2)
    if pooled:
        yield f"pool{number}", nn.MaxPool2d(2)
    if norm == "response" and number == 1:
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


def _check(in_shape: tuple[int, ...], kernel: int, padding: str, chances: int, linear: int) -> None:
    if len(in_shape) != 3:
        raise ConfigError(
            f"model 'cnn' needs images [channels, height, width]; this task has samples of shape {in_shape}"
        )
    if padding == "same" and kernel % 2 == 0:
        raise ConfigError(f"model 'cnn': padding 'same' needs an odd kernel, found kernel = {kernel}")
    if chances > linear:
        raise ConfigError(f"model 'cnn': {chances} chances of dropout for {linear} linear layers")


def _too_small(in_shape: tuple[int, ...], number: int, kernel: int, padding: str) -> str:
    return (
        f"model 'cnn': an image of {in_shape[1]}x{in_shape[2]} is used up at convolution {number} "
        f"(kernel {kernel}, padding {padding!r}, then pooling by 2); use fewer entries of channels, "
        "a smaller kernel, or padding 'same'"
    )
