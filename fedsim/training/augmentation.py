"""Images that are shifted and mirrored at random while clients train: on tensors, a whole minibatch at once.

How a sample looks in an epoch is a function of (seed, purpose, client, nth job, epoch, position of the sample among the
client's), hashed for whole cohorts at once like the order of the samples. So it depends neither on who else trains nor
on how, and two rules in the same world see the same images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError
from fedsim.common.rng import hashes

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Augment:
    """`[train.augment]` as plain values."""

    crop: int = 0
    """Images get so many pixels of zeros on each side, and a window of their own size is cut out at random."""
    flip: bool = False
    """Whether half of them are mirrored, left to right."""

    @property
    def views(self) -> int:
        """V, the number of ways in which an image can look."""
        return (2 * self.crop + 1) ** 2 * (1 + self.flip)

    def drawn(self, seed: int, purpose: str, clients: Ints, nths: Ints, epochs: Ints, places: Ints) -> Ints:
        """Return [n] which of the V views each sample is seen in; `places` are positions among a client's samples."""
        bits = hashes(seed, f"augment {purpose}", clients, nths, epochs, places)
        return (bits % np.uint64(self.views)).astype(np.int64)


class Augmenter:
    """Shows images in one of their views.

    Args:
        how: what is done to them.
        shape: of a sample: channels, height, width.
        device: where images will be.

    Raises ConfigError as `check_images` does.
    """

    def __init__(self, how: Augment, shape: Sequence[int], device: torch.device) -> None:
        check_images(how, shape)
        self.channels, height, width = shape
        source, inside = _table(how, height, width)
        self._source, self._inside = torch.from_numpy(source).to(device), torch.from_numpy(inside).to(device)

    def __call__(self, x: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        """Return images `x` [n, ...], each in its view [n], in the shape that they came in."""
        flat = x.reshape(len(x), self.channels, -1)
        source = self._source[views].unsqueeze(1).expand_as(flat)
        return flat.gather(2, source).mul_(self._inside[views].unsqueeze(1)).view(x.shape)


def check_images(how: Augment, shape: Sequence[int]) -> None:
    """Raise ConfigError for samples that are no images, and for a window that could lie beside the image."""
    if len(shape) != 3:
        raise ConfigError(
            f"train.augment: expected images, samples of shape [channels, height, width], found samples of shape "
            f"{list(shape)}: leave it out, or take a task with images"
        )
    side = min(shape[1:])
    if how.crop >= side:
        raise ConfigError(
            f"train.augment.crop: expected less than the {side} pixels of an image's side, found {how.crop}"
        )


def _table(how: Augment, height: int, width: int) -> tuple[Ints, NDArray[np.float32]]:
    """Return [V, height * width] from which pixel each pixel of a view comes, and 1, or 0 where it is padding."""
    side = 2 * how.crop + 1
    shift, mirrored = np.divmod(np.arange(how.views), 1 + how.flip)
    down, right = np.divmod(shift, side)
    across = np.where(mirrored[:, None] == 1, np.arange(width)[::-1], np.arange(width))
    rows = (np.arange(height) + (down - how.crop)[:, None])[:, :, None]
    columns = (across + (right - how.crop)[:, None])[:, None, :]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    source = np.clip(rows, 0, height - 1) * width + np.clip(columns, 0, width - 1)
    shape = (how.views, height * width)
    return source.reshape(shape).astype(np.int64), inside.reshape(shape).astype(np.float32)
