"""Image augmentation: random crops and flips of whole minibatches as tensors.

The view of a sample in an epoch is a hash of (seed, purpose, client, nth job, epoch, position among the client's
samples), computed for whole cohorts at once like the order of the samples. The view therefore depends neither on the
other clients nor on the batching mode, and two rules in the same world see the same images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError
from fedsim.common.rng import hashes


@dataclass(frozen=True, slots=True)
class Augment:
    """`[train.augment]` as plain values."""

    crop: int = 0
    """Pixels of zero padding on each side, from which a random window of the image's size is cut."""
    flip: bool = False
    """Whether half of the images, chosen at random, are mirrored left to right."""

    @property
    def views(self) -> int:
        """V, the number of possible views of an image."""
        return (2 * self.crop + 1) ** 2 * (1 + self.flip)

    def drawn(self, seed: int, purpose: str, clients: Ints, nths: Ints, epochs: Ints, places: Ints) -> Ints:
        """Return the views [n] of samples, from 0 to V - 1; `places` are positions among a client's samples."""
        bits = hashes(seed, f"augment {purpose}", clients, nths, epochs, places)
        return (bits % np.uint64(self.views)).astype(np.int64)


class Augmenter:
    """Computes views of images.

    Args:
        augment: the augmentation.
        shape: channels, height and width of a sample.
        device: the device of the images.

    Raises ConfigError as `check_images` does.
    """

    def __init__(self, augment: Augment, shape: Sequence[int], device: torch.device) -> None:
        check_images(augment, shape)
        self.channels, height, width = shape
        crop, side = augment.crop, 2 * augment.crop + 1
        shift, mirrored = np.divmod(np.arange(augment.views), 1 + augment.flip)
        down, right = np.divmod(shift, side)
        across = np.where(mirrored[:, None] == 1, np.arange(width)[::-1], np.arange(width))
        rows = (np.arange(height) + (down - crop)[:, None])[:, :, None]
        columns = (across + (right - crop)[:, None])[:, None, :]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        source = np.clip(rows, 0, height - 1) * width + np.clip(columns, 0, width - 1)
        self._source = torch.from_numpy(source.reshape(augment.views, -1)).long().to(device)
        """[V, height * width] The source pixel of each pixel of a view."""
        self._inside = torch.from_numpy(inside.reshape(augment.views, -1).astype(np.float32)).to(device)
        """[V, height * width] 1, or 0 where the pixel is padding."""

    def __call__(self, x: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        """Return images `x` [n, ...], each in its view [n], in the shape of `x`."""
        flat = x.reshape(len(x), self.channels, -1)
        source = self._source[views].unsqueeze(1).expand_as(flat)
        return flat.gather(2, source).mul_(self._inside[views].unsqueeze(1)).view(x.shape)


def check_images(augment: Augment, shape: Sequence[int]) -> None:
    """Raise ConfigError for samples that are not images, and for a crop that could miss the image entirely."""
    if len(shape) != 3:
        raise ConfigError(
            f"train.augment: expected images, samples of shape [channels, height, width], found samples of shape "
            f"{list(shape)}: leave it out, or use a task with images"
        )
    side = min(shape[1:])
    if augment.crop >= side:
        raise ConfigError(
            f"train.augment.crop: expected less than the {side} pixels of an image's side, found {augment.crop}"
        )
