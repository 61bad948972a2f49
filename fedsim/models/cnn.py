"""Convolutions, then dense layers; by default the MNIST network of FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedsim.errors import ConfigError

Width = Annotated[int, Field(ge=1)]


def cnn(
    *,
    in_shape: tuple[int, ...],
    n_classes: int,
    channels: Sequence[Width] = (32, 64),
    kernel: Width = 5,
    padding: Literal["same", "valid"] = "same",
    norm: Literal["none", "group"] = "none",
    groups: Width = 8,
    hidden: Sequence[Width] = (512,),
) -> nn.Module:
    """Blocks of convolution, normalisation, ReLU and 2x2 max-pooling, then linear layers with ReLU.

    channels: output channels of each convolution. padding: "same" keeps the side of the image (odd kernels
    only), "valid" shortens it by kernel - 1; pooling halves it, rounding down. norm: "group" puts a GroupNorm
    after each convolution, with as many groups as divide both `groups` and its channels. hidden: widths of
    the dense layers. Raises ConfigError when samples are not [channels, height, width], or the image shrinks
    to nothing.
    """
    _check(in_shape, kernel, padding)
    pad = kernel // 2 if padding == "same" else 0
    sides = [in_shape[1], in_shape[2]]
    model = nn.Sequential()
    for number, (before, after) in enumerate(pairwise([in_shape[0], *channels]), start=1):
        sides = [(side + 2 * pad - kernel + 1) // 2 for side in sides]
        if min(sides) < 1:
            raise ConfigError(_too_small(in_shape, number, kernel, padding))
        _add_block(model, number, nn.Conv2d(before, after, kernel, padding=pad), norm, groups)
    model.add_module("flatten", nn.Flatten())
    _add_dense(model, [([in_shape[0], *channels][-1]) * math.prod(sides), *hidden], n_classes)
    return model


def _add_block(model: nn.Sequential, number: int, conv: nn.Conv2d, norm: str, groups: int) -> None:
    model.add_module(f"conv{number}", conv)
    if norm == "group":
        width = conv.out_channels
        model.add_module(f"norm{number}", nn.GroupNorm(math.gcd(groups, width), width))
    model.add_module(f"relu_conv{number}", nn.ReLU())
    model.add_module(f"pool{number}", nn.MaxPool2d(2))


def _add_dense(model: nn.Sequential, widths: list[int], n_classes: int) -> None:
    for number, (before, after) in enumerate(pairwise(widths), start=1):
        model.add_module(f"fc{number}", nn.Linear(before, after))
        model.add_module(f"relu_fc{number}", nn.ReLU())
    model.add_module("out", nn.Linear(widths[-1], n_classes))


def _check(in_shape: tuple[int, ...], kernel: int, padding: str) -> None:
    if len(in_shape) != 3:
        raise ConfigError(
            f"model 'cnn' needs images [channels, height, width]; this task has samples of shape {in_shape}"
        )
    if padding == "same" and kernel % 2 == 0:
        raise ConfigError(f"model 'cnn': padding 'same' needs an odd kernel, found kernel = {kernel}")


def _too_small(in_shape: tuple[int, ...], number: int, kernel: int, padding: str) -> str:
    return (
        f"model 'cnn': an image of {in_shape[1]}x{in_shape[2]} is used up at convolution {number} "
        f"(kernel {kernel}, padding {padding!r}, then pooling by 2); use fewer entries of channels, "
        "a smaller kernel, or padding 'same'"
    )
