"""A residual network without normalisation of activations (Brock et al., 2021), in the size of FedLF's CIFAR-100 model.

Weights are standardised instead: each filter gets mean 0, variance 1 / (weights of a filter), and a trained gain. The
scales of the blocks, alpha and beta, keep the variance of activations near 1 at the start.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from fedsim.common.errors import ConfigError

Width = Annotated[int, Field(ge=1)]
_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""Makes the variance of ReLU of a standard normal number 1."""


class ScaledConv2d(nn.Conv2d):
    """A convolution without bias whose filters are standardised and multiplied by a gain each."""

    draws = False

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1) -> None:
        super().__init__(before, after, kernel, stride, padding=kernel // 2, bias=False)
        self.gain = nn.Parameter(torch.ones(after, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, before, H, W] to [B, after, H / stride, W / stride]."""
        fan_in = self.weight[0].numel()
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = torch.rsqrt(variance * fan_in + 1e-4) * self.gain
        return functional.conv2d(x, (self.weight - mean) * scale, None, self.stride, self.padding)


class Residual(nn.Module):
    """Two 3x3 convolutions and a shortcut around them, which is a 1x1 convolution where the shape changes."""

    draws = False

    def __init__(self, before: int, after: int, stride: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        changes = stride != 1 or before != after
        self.shortcut = ScaledConv2d(before, after, 1, stride) if changes else None
        self.conv1 = ScaledConv2d(before, after, 3, stride)
        self.conv2 = ScaledConv2d(after, after, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shortcut + alpha x branch; the input of the branch is scaled to variance 1."""
        out = functional.relu(x) * (_RELU_GAIN / self.beta)
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(functional.relu(self.conv1(out)) * _RELU_GAIN)
        scaled: torch.Tensor = self.alpha * out
        return shortcut + scaled


def nfresnet(
    *,
    in_shape: tuple[int, ...],
    n_classes: int,
    stem: Width = 64,
    stages: Annotated[Sequence[Width], Field(min_length=1)] = (16, 32, 64),
    blocks: Width = 2,
    alpha: Annotated[float, Field(gt=0)] = 0.2,
) -> nn.Module:
    """A 3x3 convolution, stages of residual blocks, the mean over the image, a linear layer.

    Raises ConfigError when samples are not [channels, height, width].

    Args:
        stem: channels of the first convolution.
        stages: channels of each stage; all but the first halve the image.
        blocks: residual blocks in a stage.
        alpha: factor on a block's convolutions, which are added to its shortcut.
    """
    if len(in_shape) != 3:
        raise ConfigError(
            f"model 'nfresnet' needs images [channels, height, width]; this task has samples of shape {in_shape}"
        )
    layers = OrderedDict[str, nn.Module](stem=ScaledConv2d(in_shape[0], stem, 3))
    layers.update(_residuals(stem, stages, blocks, alpha))
    layers.update(relu=nn.ReLU(), mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    layers["out"] = nn.Linear(stages[-1], n_classes)
    return nn.Sequential(layers)


def _residuals(
    stem: int, stages: Sequence[int], blocks: int, alpha: float
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of all stages and their names."""
    variance = 1.0
    for stage, (before, after) in enumerate(pairwise([stem, *stages]), start=1):
        for block in range(1, blocks + 1):
            width, stride = (before, 1 if stage == 1 else 2) if block == 1 else (after, 1)
            part = Residual(width, after, stride, alpha, math.sqrt(variance))
            yield f"stage{stage}_{block}", part
            variance = (variance if part.shortcut is None else 1.0) + alpha**2
